"""The blocks of pages run as they stand, on one process and on two, and print what the page says."""

import pytest

from tests.pages import Page

LAYOUTS = [(1, 8), (2, 4)]


@pytest.mark.parametrize(("num_hosts", "devices"), LAYOUTS)
def test_the_toolkits_page_runs_and_prints_what_it_says(num_hosts: int, devices: int) -> None:
    page = Page("toolkit.md")
    printed = page.run(num_hosts, devices)
    said = "".join(page.blocks("text")).replace("of 1 host", "of 1 host" if num_hosts == 1 else f"of {num_hosts} hosts")
    assert printed[0].startswith(f"{said}memory of rank 0 on ")
    for rank, text in enumerate(printed[1:], start=1):
        assert text.startswith(f"memory of rank {rank} on ")


@pytest.mark.parametrize(("num_hosts", "devices"), LAYOUTS)
def test_pmap_and_what_replaces_it_agree_as_the_page_asserts(num_hosts: int, devices: int) -> None:
    page = Page("migrating.md")
    assert sum(block.count("assert ") for block in page.blocks("python")) == 4
    assert page.run(num_hosts, devices) == [""] * num_hosts
