"""The predictions of docs/roofline.md."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "benchmark/vocab_parallel_draft"
sys.path.insert(0, str(BENCH))

import roofline  # noqa: E402


@pytest.fixture
def host():
    """1 GB/s of memory, 1 MB/s of link, 100 us a collective, 10 us a launch."""
    return roofline.Host("test", 1e9, 1e6, 100, 100, 10, False)


def test_the_page_has_the_scripts_tables():
    # Red if a rate changes and the page does not, or the page is edited by hand.
    page = roofline.PAGE.read_text()
    assert roofline.page_with_tables(page) == page
    assert all(f"### {host.name}" in page for host in roofline.HOSTS)


def test_bytes_of_one_row(host):
    # Red if a pass over the logits, or a rank's words, are counted wrongly.
    dense, packed = roofline.dense(host, 1), roofline.packed(host, 1)
    assert dense.memory_bytes == 248320 * (2 + 2 + 4 + 4)
    assert roofline.dense(host._replace(reorders=True), 1).memory_bytes == 248320 * 16
    assert dense.link_bytes == 248320 * 2 * 3 // 4
    # One row is padded to four: 48 bytes of words a rank.
    assert packed.memory_bytes == 62080 * 2 + 48 + 2 * 4 * 48 + 16
    assert packed.link_bytes == 3 * 48


def test_microseconds_add_up(host):
    # Red if a term of the formula is left out, or a unit is wrong.
    cost = roofline.dense(host, 1)
    expected = 4 * 10 + 100 + 248320 * 12 / 1e3 + 248320 * 1.5 / 1.0
    assert cost.microseconds == pytest.approx(expected)


def test_launches(host):
    # Red if the split over the vocabulary, or the reordering copy, costs nothing.
    assert [roofline.packed(host, rows).launches for rows in (1, 527, 528)] == [4, 4, 3]
    assert roofline.dense(host._replace(reorders=True), 1).launches == 5
    assert roofline.packed(host._replace(packed_operations=54), 1).launches == 54
