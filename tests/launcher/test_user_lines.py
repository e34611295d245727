"""What a gang's user sees of a rank's output; the torn lines are gloo's as its threads have left them."""

import pytest

from launcher.user_lines import UserLines

WHOLE = "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
TORN = "0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
TWO_AT_ONCE = "[Gloo] Rank [Gloo] Rank 00 is connected to  is connected to 33 peer ranks.  peer ranks. Expected"
XLA = "E1122 10:11:12.345678 7 rpc.cc:12] cut\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.5\n\n 3\n", ["loss 0.5", "", " 3"]),
        (WHOLE + "mine\n" + WHOLE, ["mine"]),
        (WHOLE + "[Gloo] Rank mine\n" + TORN, ["mine"]),
        ("[Gloo] Rank 42\n" + TORN, ["42"]),
        ("[Gloo] Rank 0 is connected to 4.5\n3 peer ranks. Expected number of connected peer ranks is : 3\n", ["4.5"]),
        (TWO_AT_ONCE + " number of connected peer ranks is : 3\n", []),
        ("host 3 is connected to 5 peer ranks. Fine\n3 is connected to 5\n",
         ["host 3 is connected to 5 peer ranks. Fine", "3 is connected to 5"]),
        (XLA + "spmd-launch: A=1\n*** Check failure stack trace: ***\n    @     0x7f00\nE is 5\n", ["E is 5"]),
    ],
)  # fmt: skip
def test_a_users_lines_are_theirs_wherever_gloos_are_torn(text: str, shown: list[str]) -> None:
    for size in (len(text), 1, 7):
        lines = UserLines()
        assert [line for at in range(0, len(text), size) for line in lines.add(text[at : at + size])] == shown
        assert lines.end() == []


def test_the_end_of_a_call_ends_the_users_line_but_not_gloos() -> None:
    lines = UserLines()
    assert lines.add("no line end") == []
    assert lines.end() == ["no line end"]
    assert lines.end() == []
    assert lines.add("[Gloo] Rank ") == lines.end() == lines.add(TORN) == lines.end() == []
    assert lines.add("[Gloo] Rank 7") == [] and lines.end() == ["7"]
