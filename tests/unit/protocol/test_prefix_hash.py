"""The names of blocks never change: stored caches and other releases depend on them."""

from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.prefix_hash import (
    HASH_BYTES,
    block_hashes,
    name_prompt,
    root_hash,
    tenant_namespace,
)

NAMESPACE = bytes(range(16))


def test_golden_vectors() -> None:
    assert root_hash(NAMESPACE).hex() == "9d891fe42f9d1e0a2ea6393b8bc4dfed"
    assert [h.hex() for h in block_hashes(NAMESPACE, range(40), 16)] == [
        "e49e133c6f4b7ff8d177dc5f97707dce",
        "4961c97a73d3d03b70519c68b17db6e9",
    ]
    assert tenant_namespace(NAMESPACE, "acme").hex() == "e3eae47a6e3ce2ecd1f8d6490d083c1f"
    assert tenant_namespace(NAMESPACE, "") == NAMESPACE


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@given(prompt=tokens, more=tokens)
def test_a_longer_prompt_keeps_the_names_of_its_prefix(prompt: list[int], more: list[int]) -> None:
    short = block_hashes(NAMESPACE, prompt, 16)
    assert len(short) == len(prompt) // 16
    assert block_hashes(NAMESPACE, prompt + more, 16)[: len(short)] == short


@given(prompt=st.lists(st.integers(0, 2**32 - 1), min_size=48, max_size=48), at=st.integers(0, 47))
def test_a_changed_token_renames_its_block_and_all_after_it(prompt: list[int], at: int) -> None:
    before = block_hashes(NAMESPACE, prompt, 16)
    changed = list(prompt)
    changed[at] ^= 1
    after = block_hashes(NAMESPACE, changed, 16)
    assert [a == b for a, b in zip(before, after, strict=True)] == [i < at // 16 for i in range(3)]


def test_namespace_tenant_and_position_are_part_of_the_name() -> None:
    prompt = [1] * 32
    names = block_hashes(NAMESPACE, prompt, 16)
    assert len(set(names)) == 2
    assert not set(names) & set(block_hashes(b"other", prompt, 16))
    assert not set(names) & set(block_hashes(tenant_namespace(NAMESPACE, "t"), prompt, 16))
    assert all(len(name) == HASH_BYTES for name in names)


def test_names_are_those_of_the_first_blocks_or_of_another_prompt() -> None:
    prompt = list(range(40))
    names = block_hashes(NAMESPACE, prompt, 16)
    assert all(name_prompt(names[:n], prompt, NAMESPACE, 16) for n in range(3))
    assert not name_prompt(names, prompt, b"other", 16)
    assert not name_prompt(names, prompt[::-1], NAMESPACE, 16)
    assert not name_prompt(names[1:], prompt, NAMESPACE, 16)
    assert not name_prompt([*names, names[0]], prompt, NAMESPACE, 16)
