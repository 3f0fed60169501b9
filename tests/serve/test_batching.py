"""What a service asks of the system's memory."""

import platform

import pytest

from incontrast.serve.batching import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems decide themselves")
def test_glibc_accepts_what_it_is_asked_to_keep():
    assert keep_freed_memory()
