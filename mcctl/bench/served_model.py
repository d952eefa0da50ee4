"""Which model, served where, a benchmark means: that of a cluster that is up, or none."""

from pathlib import Path

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError, NotFound
from daemons.protocol.node import ModelDescription
from daemons.simulation.hardware import KvSizes
from mcctl import model_store
from mcctl.cluster.record import running_record
from mcctl.openai_stream import OpenAiClient

_SAFE_VOCABULARY = 1000
"""Where nobody says how large it is."""


def served_model(url: str, wanted: str, api_key: str = "") -> str:
    """The served model that is meant; the catalogue's default means whatever is served alone."""
    with OpenAiClient(url, api_key=api_key) as client:
        served = client.models()
    packaged = model_store.CATALOG.get(wanted)
    name = packaged.name if packaged else Path(wanted).name
    if name in served:
        return name
    if len(served) == 1 and wanted == model_store.DEFAULT_MODEL:
        return served[0]
    raise NotFound(f"{url} does not serve {name}; it serves: {', '.join(served) or 'nothing'}")


def url_of_local_cluster(
    model: str, dtype: str | None, progress: model_store.Progress
) -> str | None:
    """Of the cluster that is up, where it serves what is meant; None, and why, where it does not."""
    record = running_record()
    if record is None:
        return None
    try:
        served = served_model(record.url, model)
    except McError as error:
        progress(f"not the cluster that is up: {error.message}; starting one of its own beside it")
        return None
    described = described_model(record.master, served)
    is_other = described is not None and dtype not in (None, "auto", described.dtype)
    if described is not None and is_other:
        progress(
            f"not the cluster that is up: it runs {described.dtype}; starting one of its own beside it"
        )
        return None
    progress(f"measuring the cluster that is up, {record.url}; --own starts another")
    return record.url


def described_model(master: str, model: str) -> ModelDescription | None:
    """None where the master does not say."""
    try:
        with ClusterClient(master, 2.0) as client:
            return next((m for m in client.models() if m.name == model), None)
    except McError:
        return None


def vocabulary_of(described: ModelDescription | None) -> int:
    """Token ids below it are safe to send."""
    return _SAFE_VOCABULARY if described is None else described.vocab_size


def kv_sizes(master: str, described: ModelDescription | None) -> KvSizes | None:
    """Of one decode instance's devices, and of what cache nodes lend for each prefill instance. None where the master
    does not say.
    """
    if described is None:
        return None
    try:
        with ClusterClient(master, 2.0) as client:
            listed = client.nodes().nodes
    except McError:
        return None
    serving = [each.node for each in listed if each.node.model == described]
    decodes = [node.capacity_tokens for node in serving if node.role == "decode"]
    num_prefills = sum(node.role == "prefill" for node in serving)
    lent_bytes = sum(each.capacity_bytes for each in listed)
    token_bytes = described.bytes_per_token
    return KvSizes(
        bytes_per_token=token_bytes,
        num_layers=described.num_layers,
        device_tokens=min(decodes, default=0),
        dram_tokens=lent_bytes // (token_bytes * max(1, num_prefills)),
    )
