"""Strings that break what was quoted carelessly; the same in every run."""

import random

SEED = 20261121
WHOLE = (
    "", " ", "-", "--", "-v", "-oProxyCommand=touch PWNED", "--help", ".", "..", "../../x", "/", "/etc/passwd",
    "a/b", "$(touch PWNED)", "`touch PWNED`", "a;touch PWNED", "a&&touch PWNED", "a|touch PWNED",
    "a\ntouch PWNED", "> PWNED", "'", "\"", "'\"'\"'", "\\", "\\'", "$HOME", "${HOME}", "$$", "!!", "#", "*",
    "?", "[a-z]", "{a,b}", "~", "~root", "%", "%h", "%%", "%n%s", "\x00", "a\x00b", "\n", "\r\n", "\t",
    "\x1b[2J", "\x7f", "\u202e", "\ufeff", "١", "²", "é", "日本", "😀", "\udcff", "null", "yes", "1e9", "0x10",
    "1_000", "inf", "nan", "[1, 2]", "{a: b}", "a: b", "!!python/object/apply:os.system [touch PWNED]", "&a",
    "*a", "|", "a b", "a@b@c", "@a", "a@", "a:b", "a:0", "a:65536", "[::1]", "[::1", "ssh://a",
    "file:///etc/passwd", "none", "gs://", "s3://$(x)/y", "=", "a=b=c", "x" * 300, "x" * 5000,
)  # fmt: skip
PIECES = (
    " ", "-", "'", "\"", "\\", "$", "`", "(", ")", ";", "&", "|", "<", ">", "\n", "\t", "%", "*", "~", "/",
    "..", "=", "@", ":", "#", "!", "{", "}", "a", "Z", "0", "é", "\udc80", "\x01",
)  # fmt: skip


def nasty(count: int = 200) -> list[str]:
    """Those that are known to hurt, and as many again as asked for, made of what hurts."""
    choice = random.Random(SEED)
    return [*WHOLE, *("".join(choice.choices(PIECES, k=choice.randint(1, 12))) for _ in range(count))]
