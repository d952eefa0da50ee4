"""Which keys differ between two configs of a process."""

from collections.abc import Iterator

from daemons.config.base import Section


def changed_keys(old: Section, new: Section, prefix: str = "") -> Iterator[str]:
    """As they are written in the file, with the section's name and a dot."""
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Section) and isinstance(after, Section):
            yield from changed_keys(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}"
