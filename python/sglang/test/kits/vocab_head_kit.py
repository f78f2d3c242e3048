"""What the packed path reads of a vocabulary-parallel head, without its weight."""

from types import SimpleNamespace


def head_of(rank: int, tp: int, vocab_size: int, padded: int) -> SimpleNamespace:
    """Rank ``rank``'s shard of ``padded`` columns, the last ones padding."""
    start = min(rank * padded, vocab_size)
    end = min(start + padded, vocab_size)
    return SimpleNamespace(
        tp_size=tp,
        num_embeddings=vocab_size,
        org_vocab_size=vocab_size,
        shard_indices=SimpleNamespace(
            num_elements_padded=padded,
            padded_org_vocab_start_index=rank * padded,
            org_vocab_start_index=start,
            org_vocab_end_index=end,
        ),
    )
