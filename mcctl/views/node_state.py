"""How a node does, in a word or two."""


def state_text(state: str, *, is_draining: bool) -> str:
    """The column of its drain is one that narrow terminals go without."""
    if not is_draining:
        return state
    return "draining" if state == "alive" else f"{state}, draining"
