"""A small MiMo model whose MTP layer drafts well some of the time.

The weights are constructed, not trained. Active tokens are the elements of a cyclic
group and their embeddings its characters, so "the token `shift` further on" is one
block-diagonal rotation. The last MLP of the target adds two such rotations of nearly
the same weight, and attention over the context decides which of the two successors
wins. The MTP layer holds the same rotations with attention weights of its own: it
usually proposes the first successor and is right as often as the target takes it.
"""
