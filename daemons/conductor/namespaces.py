"""Which of the namespaces that serve one model name is preferred: during an upgrade, or with mixed machines, there are
several, and a gateway hashes a prompt for one of them. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from daemons.conductor.membership import Member
from daemons.protocol.node import ModelDescription


@dataclass(slots=True)
class _Serving:
    model: ModelDescription
    num_prefill: int = 0
    num_decode: int = 0
    newest_s: float = 0.0

    def rank(self) -> tuple[bool, int, float, bytes]:
        """The least is the best: one that can answer at all, then the most instances, then the one that came last."""
        is_whole = self.num_prefill > 0 and self.num_decode > 0
        count = self.num_prefill + self.num_decode
        return not is_whole, -count, -self.newest_s, self.model.namespace


def rank_models(members: Iterable[Member]) -> list[ModelDescription]:
    """One entry per name and namespace that an instance serves which is not dead; by name, the preferred one first."""
    found: dict[tuple[str, bytes], _Serving] = {}
    for member in members:
        model = member.node.model
        if model is None or member.state == "dead":
            continue
        serving = found.setdefault((model.name, model.namespace), _Serving(model))
        serving.newest_s = max(serving.newest_s, member.joined_s)
        if member.state == "alive":
            serving.num_prefill += member.node.role == "prefill"
            serving.num_decode += member.node.role == "decode"
    ranked = sorted(found.values(), key=lambda serving: (serving.model.name, *serving.rank()))
    return [serving.model for serving in ranked]
