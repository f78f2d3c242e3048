"""The packed path of a single rank, for tests of what draft workers do with it."""

from types import SimpleNamespace

from sglang.srt.layers.vocab_parallel_draft import VocabParallelDraft


class OneRank:
    """A gather over a group of one; more ranks are tested elsewhere."""

    def gather_stacked(self, words):
        return words


def packed_draft(vocab_size: int) -> VocabParallelDraft:
    shard = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=vocab_size)
    processor = SimpleNamespace(vocab_size=vocab_size, final_logit_softcapping=None)
    head = SimpleNamespace(shard_indices=shard)
    return VocabParallelDraft(processor, head, OneRank(), "gloo")


def packed_output(packed: VocabParallelDraft, logits, step=None):
    """What the logits processor returns for a head that gives ``logits``."""
    processor = SimpleNamespace(logit_scale=None, _compute_lm_head=lambda *_: logits)
    return packed.logits_output(processor, None, packed.head, step=step)
