"""The table of measurements behind ``--speculative-vocab-parallel-draft auto``."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from sglang.srt.environ import envs
from sglang.srt.layers.vocab_parallel_draft_eligibility import DenseReason
from sglang.srt.layers.vocab_parallel_draft_table import (
    SCHEMA,
    VARIABLE,
    PackedRows,
    RowTimes,
    Setting,
    Times,
    agreed_choice,
    applicable,
    choose,
    read_table,
    winning_rows,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import vocab_parallel_draft_rank_kit as rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

SETTING = Setting("gloo", 4, "a CPU", "bfloat16", 62080)
FAST, SLOW = (10.0, 9.0, 11.0), (100.0, 90.0, 110.0)


def times(values) -> dict:
    return dict(zip(("median", "p10", "p90"), values))


def measurement(rows=((1, SLOW, FAST),), **changed) -> dict:
    """One measurement; ``rows``: count, dense and packed times."""
    setting = dict(
        transport="gloo",
        world_size=4,
        device="a CPU",
        dtype="bfloat16",
        width=62080,
    )
    return {
        "setting": {**setting, **changed},
        "versions": {"torch": "2"},
        "rows": [
            {"rows": count, "dense_us": times(dense), "packed_us": times(packed)}
            for count, dense, packed in rows
        ],
    }


def table(*measurements, schema=SCHEMA) -> dict:
    return {"schema": schema, "measurements": list(measurements)}


class TableCase(CustomTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(Path(folder.name) / "table.json")

    def write(self, content) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        Path(self.path).write_text(text)
        return self.path


class TestReadTable(TableCase):
    def test_a_table_that_the_schema_allows(self):
        """Red when a field is renamed: files that are out there stop loading."""
        read = read_table(self.write(table(measurement(), measurement(width=64))))
        self.assertEqual(read.measurements[0].setting, SETTING)
        self.assertEqual(
            read.measurements[0].rows, [RowTimes(1, Times(*SLOW), Times(*FAST))]
        )

    def test_a_table_that_cannot_be_used_is_one_clear_error(self):
        """Red when a bad file is taken, or its error lacks the variable, file or cause."""
        no_times, no_rows = measurement(), measurement()
        del no_times["rows"][0]["packed_us"]
        no_rows["rows"] = []
        bad = {
            "truncated": "{",
            "Expected `array`": {"schema": SCHEMA, "measurements": 3},
            "schema is": table(measurement(), schema="other/9"),
            "packed_us": table(no_times),
            "length >= 1": table(no_rows),
            "world_size": table(measurement(world_size=0)),
            "Expected `int`, got `str`": table(measurement(width="wide")),
            "not in order": table(measurement([(1, SLOW, (9.0, 10.0, 11.0))])),
            "dense_us.median": table(measurement([(1, (0, 0, 0), FAST)])),
            "do not rise": table(measurement([(8, SLOW, FAST), (8, SLOW, FAST)])),
            "measured twice": table(measurement(), measurement()),
        }
        for cause, content in bad.items():
            path = self.write(content)
            with self.subTest(cause=cause), self.assertRaises(ValueError) as caught:
                read_table(path)
            message = str(caught.exception)
            for part in (f"{VARIABLE}={path}", cause, "bench_transport.py"):
                self.assertIn(part, message)

    def test_a_missing_file(self):
        """Red when a wrong path ends in a bare OSError, or is taken for no table."""
        with self.assertRaisesRegex(ValueError, "No such file"):
            read_table(self.path)


class TestWinningRows(CustomTestCase):
    def test_a_win_is_outside_of_both_spreads(self):
        """Red when noise counts as a win: medians apart, spreads overlapping."""
        for dense, packed, wins in (
            (SLOW, FAST, True),
            (FAST, SLOW, False),
            (FAST, FAST, False),
            # Packed's slow tail reaches dense's median; dense's fast one packed's.
            ((20, 19, 21), (10, 9, 20), False),
            ((20, 10, 21), (10, 9, 11), False),
        ):
            row = RowTimes(1, Times(*dense), Times(*packed))
            with self.subTest(dense=dense, packed=packed):
                self.assertEqual(row.packed_wins, wins)

    def test_ranges_lie_between_neighbouring_wins(self):
        """Red when rows that were not shown to win go packed."""

        def ranges(*wins):
            rows = [
                RowTimes(count, Times(*SLOW), Times(*(FAST if win else SLOW)))
                for count, win in wins
            ]
            return winning_rows(rows)

        rows = ranges((1, True), (2, False), (4, True), (8, True), (16, True))
        self.assertEqual(rows, PackedRows(((1, 1), (4, 16))))
        self.assertEqual([r for r in range(20) if r in rows], [1, *range(4, 17)])
        self.assertEqual(str(rows), "1 and 4 to 16")
        self.assertEqual(ranges((1, False), (2, False)), PackedRows(()))
        self.assertEqual(ranges((8, True)), PackedRows(((8, 8),)))


class TestChoose(TableCase):
    def test_only_the_same_setting_applies(self):
        """Red when another transport's, size's, device's or dtype's times are used."""
        for changed in (
            dict(transport="nccl"),
            dict(world_size=2),
            dict(device="another CPU"),
            dict(dtype="float32"),
            dict(width=62081),
        ):
            with self.subTest(changed=changed):
                path = self.write(table(measurement(**changed)))
                self.assertIsNone(applicable(read_table(path), SETTING))
                choice = choose(path, SETTING)
                self.assertIs(choice.reason, DenseReason.NOT_MEASURED)
                self.assertIn("transport=gloo, world_size=4", choice.note)

    def test_the_widest_width_that_is_not_wider(self):
        """Red when a wider shard's times speak for a narrower one."""
        widths = (128, 62080, 4096, 124160)
        path = self.write(table(*(measurement(width=width) for width in widths)))
        found = applicable(read_table(path), SETTING)
        self.assertEqual(found.setting.width, 62080)
        narrower = Setting("gloo", 4, "a CPU", "bfloat16", 62079)
        self.assertEqual(applicable(read_table(path), narrower).setting.width, 4096)

    def test_no_table(self):
        """Red when auto goes packed without measurements."""
        for path in (None, ""):
            choice = choose(path, SETTING)
            self.assertIs(choice.reason, DenseReason.NOT_MEASURED)
            self.assertIn(VARIABLE, choice.note)

    def test_packed_where_it_wins_and_dense_if_it_never_does(self):
        """Red when a measured loss is called unmeasured, or goes packed."""
        rows = [(1, FAST, SLOW), (8, SLOW, FAST), (64, SLOW, FAST)]
        choice = choose(self.write(table(measurement(rows))), SETTING)
        self.assertEqual(choice.packed_rows, PackedRows(((8, 64),)))
        self.assertIsNone(choice.reason)
        choice = choose(self.write(table(measurement(rows[:1]))), SETTING)
        self.assertIsNone(choice.packed_rows)
        self.assertIs(choice.reason, DenseReason.MEASURED_SLOWER)


class TestAgreedChoice(TableCase):
    """Every rank takes rank 0's choice."""

    def test_ranks_with_other_files(self):
        """Red when a rank reads a file of its own: the ranks would choose apart."""
        path = self.write(table(measurement([(1, FAST, SLOW), (8, SLOW, FAST)])))
        paths = [path, path + ".missing", ""]
        results = run_ranks(rank_kit.choice_on_rank, 3, paths, 62080)
        self.assertEqual(results, [("8", None, "")] * 3)
        results = run_ranks(rank_kit.choice_on_rank, 2, ["", path], 62080)
        self.assertEqual(results, [("", "not_measured", "")] * 2)

    def test_a_bad_file_of_rank_0_is_every_ranks_error(self):
        """Red when the others wait for a rank that has raised."""
        results = run_ranks(
            rank_kit.choice_on_rank, 2, [self.path, self.write("")], 62080
        )
        self.assertEqual(len(set(results)), 1)
        self.assertIn(f"{VARIABLE}={self.path}", results[0][2])

    def test_the_variable_of_rank_0_is_read(self):
        """Red when the environment variable is not the one that the docs name."""
        self.assertEqual(VARIABLE, "SGLANG_VOCAB_PARALLEL_DRAFT_TABLE")
        group = SimpleNamespace(rank_in_group=0, broadcast_object=lambda x, src: x)
        path = self.write(table(measurement()))
        with envs.SGLANG_VOCAB_PARALLEL_DRAFT_TABLE.override(path):
            self.assertEqual(
                agreed_choice(group, SETTING).packed_rows.ranges, ((1, 1),)
            )
        os.environ.pop(VARIABLE, None)
        self.assertIs(agreed_choice(group, SETTING).reason, DenseReason.NOT_MEASURED)


if __name__ == "__main__":
    unittest.main()
