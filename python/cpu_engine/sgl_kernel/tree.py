"""Token trees: build the verify batch from draft scores, accept a path greedily.

Node 0 of each request is the last verified token; nodes 1 to n-1 are draft tokens.
`next_token[t]` is the first child of node t and `next_sibling[t]` its next sibling,
-1 for none.
"""

from __future__ import annotations

import torch

FULL_MASK = 0
QLEN_ONLY = 1


def tree_parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Parent node of each draft node.

    `selected[t - 1]` is node t's index among all scored candidates, `topk` of them for
    each expanded candidate, and `parent_list` says which candidate was expanded.
    -1 for a node whose parent was not selected (possible when scores tie): no path
    reaches it.
    """
    node_of = {candidate: t for t, candidate in reversed([*enumerate(selected, 1)])}
    parents = []
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group], -1))
    return parents


def ancestors_or_self(parents: list[int]) -> list[list[int]]:
    """For each node, itself and its ancestors, root last; node 0 first."""
    paths = [[0]]
    for t, parent in enumerate(parents, 1):
        path = [t]
        while parent > 0:
            path.append(parent)
            parent = parents[parent - 1]
        path.append(0)
        paths.append(path)
    return paths


def links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node; children in index order."""
    next_token = [-1] * (len(parents) + 1)
    next_sibling = [-1] * (len(parents) + 1)
    for t in range(len(parents), 0, -1):
        parent = parents[t - 1]
        if parent < 0:
            continue
        next_sibling[t] = next_token[parent]
        next_token[parent] = t
    return next_token, next_sibling


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    top_scores_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of every request's tree.

    `positions` `[batch * n]`, the three `retrieve_*` int64 `[batch, n]`. `tree_mask` is
    flat bool: n x n cells a request (`QLEN_ONLY`), or n x (seq_len + n) with the
    prefix columns left as they are (`FULL_MASK`). `spec_steps` bounds the depth.
    """
    n, mode = num_verify_tokens, int(tree_mask_mode)
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree_mask_mode {mode} is not available on the CPU")
    lengths = seq_lens.tolist()
    batch = len(lengths)
    selected = top_scores_index.tolist()
    expanded = parent_list.reshape(batch, -1).tolist() if batch else []
    children, siblings, depths, visible = [], [], [], []
    for i in range(batch):
        parents = tree_parents(selected[i], expanded[i], topk)
        paths = ancestors_or_self(parents)
        first_child, sibling = links(parents)
        children.append(first_child)
        siblings.append(sibling)
        depths.append([len(path) - 1 for path in paths])
        visible.append([[s in path for s in range(n)] for path in paths])
    if batch == 0:
        return
    nodes = torch.arange(batch * n).view(batch, n)
    retrieve_index.copy_(nodes)
    retrieve_next_token.copy_(torch.tensor(children))
    retrieve_next_sibling.copy_(torch.tensor(siblings))
    positions.view(batch, n).copy_(torch.tensor(depths) + seq_lens[:, None])
    blocks = torch.tensor(visible)
    if mode == QLEN_ONLY:
        tree_mask[: blocks.numel()] = blocks.flatten()
        return
    start = 0
    for length, block in zip(lengths, blocks):
        stop = start + n * (length + n)
        tree_mask[start:stop].view(n, length + n)[:, length:] = block
        start = stop


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down each tree as long as a child is the target's choice.

    `candidates`, `target_predict` and the links are `[batch, n]`; `predicts` is flat
    `[batch * n]`, `accept_index` `[batch, max depth + 1]`, prefilled with -1.
    `accept_token_num` counts accepted draft tokens, without the bonus token. (The
    parameters' spelling is that of the call.)
    """
    targets = target_predict.flatten().tolist()
    flat_index = retrive_index.tolist()
    next_token, next_sibling = (
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
    )
    tokens = candidates.tolist()
    max_accept = accept_index.shape[1]
    counts, accepted, predicted = [], [], {}
    for i, token in enumerate(tokens):
        path = [flat_index[i][0]]
        node = 0
        while len(path) < max_accept:
            wanted = targets[path[-1]]
            child = next_token[i][node]
            while child != -1 and token[child] != wanted:
                child = next_sibling[i][child]
            if child == -1:
                break
            path.append(flat_index[i][child])
            node = child
        predicted.update((place, targets[place]) for place in path)
        counts.append(len(path) - 1)
        accepted.append(path + [-1] * (max_accept - len(path)))
    if not counts:
        return
    accept_index.copy_(torch.tensor(accepted))
    accept_token_num.copy_(torch.tensor(counts))
    places = torch.tensor(list(predicted))
    predicts[places] = torch.tensor(list(predicted.values()), dtype=predicts.dtype)
