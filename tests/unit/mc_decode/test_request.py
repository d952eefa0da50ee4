"""Which tokens a decode node pulls once more when prefill is done."""

from types import SimpleNamespace

import pytest

from daemons.mc_decode.request import Request


@pytest.mark.parametrize(
    ("num_asked", "num_good", "num_reused", "gap"),
    [
        (0, 0, 0, (0, 0)),  # nothing was matched
        (0, 0, 128, (0, 128)),  # only prefill has loaded
        (3, 3, 192, (192, 192)),  # both have loaded all
        (3, 2, 192, (128, 192)),  # ours got shorter
        (3, 3, 128, (192, 128)),  # prefill's got shorter: it computed what we have
        (3, 2, 128, (128, 192)),  # both got shorter: ours has left garbage over what was pulled
        (3, 1, 128, (64, 192)),
    ],
)
def test_a_load_that_got_shorter_is_pulled_over_to_its_end(num_asked, num_good, num_reused, gap):
    load = SimpleNamespace(num_asked=num_asked, num_blocks=num_good, block_tokens=64)
    reply = SimpleNamespace(num_reused_tokens=num_reused)
    request = Request(call=None, message=None, arrived_s=0.0, load=load, reply=reply)
    found = request.gap()
    assert found == gap or (found[0] >= found[1] and gap[0] >= gap[1])
