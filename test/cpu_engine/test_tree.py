"""Draft trees: build and greedy verify against a tree of Python objects."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import sgl_kernel
import torch


@dataclass
class Node:
    """A draft token; the root stands for the last verified token."""

    candidate: int
    parent: Node | None
    score: float
    index: int = 0
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[int]:
        return ([] if self.parent is None else self.parent.path()) + [self.index]


def grow(
    rng: random.Random, topk: int, steps: int, n: int
) -> tuple[list[Node], list[int], list[int]]:
    """A tree as EAGLE grows it: nodes, expanded candidates, selected candidates.

    Step 0 scores `topk` tokens; each later step expands the best `topk` tokens of the
    step before into `topk` each. The best n - 1 of all become the tree, by number.
    """
    root = Node(-1, None, 1.0)
    level = [Node(c, root, rng.random()) for c in range(topk)]
    scored, expanded = list(level), [-1]
    for step in range(1, steps):
        level = sorted(level, key=lambda node: -node.score)[:topk]
        if step == 1:
            level.sort(key=lambda node: node.candidate)
        expanded += [node.candidate for node in level]
        first = len(scored)
        level = [
            Node(first + i * topk + j, parent, parent.score * rng.random())
            for i, parent in enumerate(level)
            for j in range(topk)
        ]
        scored += level
    best = sorted(scored, key=lambda node: -node.score)[: n - 1]
    nodes = [root, *sorted(best, key=lambda node: node.candidate)]
    for index, node in enumerate(nodes):
        node.index = index
        if node.parent is not None:
            node.parent.children.append(node)
    return nodes, expanded, [node.candidate for node in nodes[1:]]


def links(nodes: list[Node]) -> tuple[list[int], list[int]]:
    child = [node.children[0].index if node.children else -1 for node in nodes]
    sibling = [-1] * len(nodes)
    for node in nodes:
        for left, right in zip(node.children, node.children[1:]):
            sibling[left.index] = right.index
    return child, sibling


SHAPES = [(1, 3, 4), (1, 1, 2), (4, 3, 8), (4, 5, 16), (8, 2, 30), (2, 6, 5)]


@pytest.mark.parametrize("full_mask", [False, True], ids=["n x n", "with prefix"])
@pytest.mark.parametrize("topk, steps, n", SHAPES)
def test_build_equals_the_tree_of_objects(topk, steps, n, full_mask) -> None:
    """Red if a parent is looked up in the wrong list, or children change order."""
    rng = random.Random(f"{topk} {steps} {n}")
    grown = [grow(rng, topk, steps, n) for _ in range(5)]
    lengths = [rng.randrange(1, 9) for _ in grown]
    shape = (len(grown), n)
    retrieve = torch.full((3, *shape), -1)
    positions = torch.empty(len(grown) * n, dtype=torch.int64)
    prefix = sum(lengths) if full_mask else 0
    mask = torch.ones(n * (prefix + n * len(grown)), dtype=torch.bool)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([expanded for _, expanded, _ in grown]),
        torch.tensor([selected for _, _, selected in grown]),
        torch.tensor(lengths),
        mask,
        positions,
        *retrieve,
        *(topk, steps, n, 0 if full_mask else 1),
    )
    assert retrieve[0].flatten().tolist() == list(range(len(grown) * n))
    want_mask = []
    for i, (nodes, _, _) in enumerate(grown):
        child, sibling = links(nodes)
        assert retrieve[1, i].tolist() == child
        assert retrieve[2, i].tolist() == sibling
        depths = [len(node.path()) - 1 for node in nodes]
        got = positions.view(shape)[i] - lengths[i]
        assert got.tolist() == depths
        for node in nodes:
            want_mask += [True] * (lengths[i] if full_mask else 0)
            want_mask += [other in node.path() for other in range(n)]
    assert mask.tolist() == want_mask


def test_a_node_without_its_parent_is_left_out() -> None:
    """Red if tied scores that drop a parent crash the server or link a stray node."""
    retrieve = torch.full((3, 1, 3), -1)
    positions, mask = torch.empty(3, dtype=torch.int64), torch.ones(9, dtype=torch.bool)
    # Candidates 2 and 3 hang on candidate 0, which is not selected.
    sgl_kernel.build_tree_kernel_efficient_cpu(
        *(torch.tensor([[-1, 0, 1]]), torch.tensor([[1, 2]]), torch.tensor([4])),
        *(mask, positions, *retrieve, 2, 2, 3, 1),
    )
    assert retrieve[1].tolist() == [[1, -1, -1]]
    assert retrieve[2].tolist() == [[-1, -1, -1]]


def test_an_unknown_mask_layout_is_refused() -> None:
    """Red if a bit-packed mask is filled as if it were bool."""
    one = torch.zeros((1, 1), dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="tree_mask_mode 2"):
        sgl_kernel.build_tree_kernel_efficient_cpu(
            *(one, one, one[0], one, one, one, one, one, 1, 1, 2, 2)
        )


def walk(
    nodes: list[Node], tokens: list[int], targets: list[int], width: int
) -> list[Node]:
    """Accepted nodes, root included, at most `width`."""
    path = [nodes[0]]
    while len(path) < width:
        wanted = targets[path[-1].index]
        matching = [c for c in path[-1].children if tokens[c.index] == wanted]
        if not matching:
            break
        path.append(matching[0])
    return path


@pytest.mark.parametrize("width_cut", [0, 1])
@pytest.mark.parametrize("topk, steps, n", SHAPES)
def test_verify_equals_a_walk(topk, steps, n, width_cut) -> None:
    """Red if siblings are skipped, or a prediction outside the path is written."""
    rng = random.Random(f"{topk} {steps} {n} verify")
    trees = [grow(rng, topk, steps, n)[0] for _ in range(40)]
    tokens = [[rng.randrange(topk + 1) for _ in range(n)] for _ in trees]
    targets = [[rng.randrange(topk + 1) for _ in range(n)] for _ in trees]
    width = max(1, steps + 1 - width_cut)
    predicts = torch.full((len(trees) * n,), -5, dtype=torch.int32)
    accept = torch.full((len(trees), width), -1, dtype=torch.int32)
    counts = torch.empty(len(trees), dtype=torch.int32)
    every = [links(nodes) for nodes in trees]
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept,
        accept_token_num=counts,
        candidates=torch.tensor(tokens),
        retrive_index=torch.arange(len(trees) * n).view(-1, n),
        retrive_next_token=torch.tensor([child for child, _ in every]),
        retrive_next_sibling=torch.tensor([sibling for _, sibling in every]),
        target_predict=torch.tensor(targets),
    )
    want = [-5] * (len(trees) * n)
    for i, nodes in enumerate(trees):
        path = walk(nodes, tokens[i], targets[i], width)
        places = [i * n + node.index for node in path]
        for place, node in zip(places, path):
            want[place] = targets[i][node.index]
        assert int(counts[i]) == len(path) - 1
        assert accept[i].tolist() == places + [-1] * (width - len(path))
    assert predicts.tolist() == want
    assert int(counts.max()) > 0 or width == 1


def test_verify_of_no_request() -> None:
    """Red if an idle batch fails."""
    none = torch.empty((0, 4), dtype=torch.int64)
    counts = torch.empty(0, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        none.flatten().int(), none.int(), counts, none, none, none, none, none
    )
    assert counts.numel() == 0
