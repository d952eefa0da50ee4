"""From a prompt to its blocks in the pool: the same template, tokens and hashes as the gateway's."""

from pathlib import Path

import msgspec

from daemons.client.cluster import ClusterClient
from daemons.core.errors import ConfigError, McError, NotFound
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.node import ModelDescription
from daemons.protocol.prefix_hash import block_hashes, tenant_namespace
from daemons.text.tokenizer import Tokenizer, load_tokenizer
from mcctl import model_store
from mcctl.cluster.record import running_record

_SNIPPET_TOKENS = 12


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator means: one chat message after an optional system message, or a whole prompt."""

    text: str
    system: str | None = None
    is_raw: bool = False
    tenant: str = ""


class ReplicaPlace(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeId
    tier: str
    offset: int
    length: int


class LocatedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, end) of the prompt; `text` is how they begin."""

    index: int
    hash: BlockHash
    start: int
    end: int
    text: str
    replicas: list[ReplicaPlace]


class LocatedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """`matched_tokens`: the prefix whose every block is somewhere. Blocks behind a gap cannot be reused."""

    model: str
    num_tokens: int
    block_tokens: int
    matched_tokens: int
    tail_tokens: int
    blocks: list[LocatedBlock]


def locate_prompt(
    client: ClusterClient, prompt: Prompt, *, model: str | None, model_path: Path | None
) -> LocatedPrompt:
    """Raises NotFound for a model that nobody serves or whose tokenizer is not on this host."""
    served = choose_model(client.models(), model)
    tokenizer = _tokenizer(served, model_path)
    tokens = _tokens(tokenizer, prompt)
    namespace = tenant_namespace(served.namespace, prompt.tenant)
    hashes = block_hashes(namespace, tokens, served.block_tokens)
    replicas, devices = client.locate_all(hashes) if hashes else ([], {})
    places = [_places(devices.get(index, []), each) for index, each in enumerate(replicas)]
    return _located(served, tokenizer, tokens, hashes, places)


def choose_model(models: list[ModelDescription], name: str | None) -> ModelDescription:
    """The named one, or the only one. One name with several namespaces (dtypes) is the first of them."""
    names = sorted({model.name for model in models})
    if not models:
        raise NotFound("no instance serves a model now; see `mcctl node list`")
    if name is None and len(names) > 1:
        raise NotFound(f"several models are served: {', '.join(names)}; choose one with --model")
    for model in models:
        if name in (None, model.name):
            return model
    raise NotFound(f"nobody serves {name}; served now: {', '.join(names)}")


def _located(
    served: ModelDescription,
    tokenizer: Tokenizer,
    tokens: list[int],
    hashes: list[BlockHash],
    places: list[list[ReplicaPlace]],
) -> LocatedPrompt:
    size = served.block_tokens
    blocks = []
    for index, (block, replicas) in enumerate(zip(hashes, places, strict=True)):
        start = index * size
        blocks.append(
            LocatedBlock(
                index=index,
                hash=block,
                start=start,
                end=start + size,
                text=tokenizer.decode(
                    tokens[start : start + _SNIPPET_TOKENS], skip_special_tokens=False
                ),
                replicas=replicas,
            )
        )
    matched = next((b.index for b in blocks if not b.replicas), len(blocks))
    return LocatedPrompt(
        model=served.name,
        num_tokens=len(tokens),
        block_tokens=size,
        matched_tokens=matched * size,
        tail_tokens=len(tokens) - len(blocks) * size,
        blocks=blocks,
    )


def _places(devices: list[NodeId], replicas: list[BlockLocation]) -> list[ReplicaPlace]:
    return [
        *(ReplicaPlace(node=node, tier="device", offset=0, length=0) for node in devices),
        *(
            ReplicaPlace(node=r.node, tier=r.tier, offset=r.offset, length=r.length)
            for r in replicas
        ),
    ]


def _tokens(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    if prompt.is_raw:
        return tokenizer.encode(prompt.text, add_special_tokens=True)
    if tokenizer.chat_template is None:
        raise ConfigError(f"{tokenizer.directory} has no chat template; use --raw")
    messages = [{"role": "user", "content": prompt.text}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": prompt.system})
    rendered = tokenizer.chat_template.render(messages)
    return tokenizer.encode(rendered)


def _tokenizer(served: ModelDescription, model_path: Path | None) -> Tokenizer:
    """From where the operator says, from this host's models, or from the local cluster's own directory."""
    if model_path is not None:
        return load_tokenizer(model_path)
    try:
        return load_tokenizer(model_store.find_model(served.name))
    except McError:
        pass
    record = running_record()
    if record is not None and Path(record.model).name == served.name:
        return load_tokenizer(Path(record.model))
    raise NotFound(
        f"the tokenizer of {served.name} is not on this host; name its directory with --model-path"
    )
