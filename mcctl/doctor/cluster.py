"""What the master says of the cluster that this host is, or will be, part of."""

from collections import defaultdict
from collections.abc import Iterator

from daemons.protocol.node import ListNodesReply
from mcctl.doctor.finding import Finding
from mcctl.health import look_at, start_one


def check_cluster(
    reply: ListNodesReply, *, is_local: bool = False, own_version: str = ""
) -> Iterator[Finding]:
    """Nodes that are away, versions that differ, roles that are missing."""
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    by_version[reply.master.software].append("the master")
    if own_version:
        by_version[own_version].append("this host")
    roles = defaultdict(set)
    for listed in reply.nodes:
        node = listed.node
        by_version[node.software].append(node.node)
        if listed.state == "alive" and node.model is not None:
            roles[node.model.name].add(node.role)
        if listed.state != "alive":
            yield Finding(
                severity="warning",
                area="cluster",
                what=node.node,
                problem=f"{node.role} on {node.host} is {listed.state}",
                fix=look_at(node, is_local=is_local),
            )
    if len(by_version) > 1:
        versions = "; ".join(
            f"{version}: {', '.join(sorted(names)[:5])}"
            for version, names in sorted(by_version.items())
        )
        yield Finding(
            severity="warning",
            area="cluster",
            what="versions",
            problem=f"not all run the same software: {versions}",
            fix="upgrade the rest, one node after the other",
        )
    yield from _check_secrets(reply)
    for model, found in sorted(roles.items()):
        for role in sorted({"prefill", "decode"} - found):
            yield Finding(
                severity="error",
                area="cluster",
                what=model,
                problem=f"no {role} instance of it is alive: requests get 503",
                fix=start_one(role, is_local=is_local),
            )


def _check_secrets(reply: ListNodesReply) -> Iterator[Finding]:
    """Daemons read each other's memory by the secret alone: nothing that they tell each other grants it."""
    by_mark: defaultdict[str, list[str]] = defaultdict(list)
    for listed in reply.nodes:
        if listed.state == "alive" and listed.node.data is not None:
            by_mark[listed.node.secret_mark].append(listed.node.node)
    if reply.master.secret_mark and by_mark:
        by_mark[reply.master.secret_mark].append("the master")
    if len(by_mark) > 1:
        groups = "; ".join(
            f"{'one of them' if mark else 'none'}: {', '.join(sorted(names)[:5])}"
            for mark, names in sorted(by_mark.items())
        )
        yield Finding(
            severity="error",
            area="secrets",
            what="transfer.secret_file",
            problem=f"not all have the same secret, so they cannot read each other's KV: {groups}",
            fix="the same file on every host as `transfer.secret_file`, and as the master's `access.secret_file`",
        )
