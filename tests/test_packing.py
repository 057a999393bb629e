"""Rows: every example in one, what its tokens see, which tokens predict what."""

from hypothesis import given
from hypothesis import strategies as st

from edgemem.training.examples import Tokens, pack, rows

ids = st.integers(0, 3)  # few, so that prompts often begin alike
prompts = st.lists(ids, min_size=1, max_size=8).map(tuple)
targets = st.lists(ids, min_size=1, max_size=5).map(tuple)
batches = st.lists(st.builds(Tokens, prompts, targets), min_size=1, max_size=6)


def unpacked(row):
    """The examples of a row, read from what a model is given."""
    shared, *lengths = row.lengths
    assert sum(row.lengths) == len(row.ids) == len(row.positions)
    assert row.positions[:shared] == list(range(shared))
    labels = dict(zip(row.predictors, row.labels, strict=True))
    assert sorted(labels) == row.predictors
    found, begin = [], shared
    for own in lengths:
        end = begin + own
        assert row.positions[begin:end] == list(range(shared, shared + own))
        seen = [*row.ids[:shared], *row.ids[begin:end]]
        target = tuple(label for at, label in labels.items() if begin <= at < end)
        # Each predictor's next token is its label, and the last one has none.
        assert seen[len(seen) - len(target) + 1 :] == list(target[:-1])
        assert [at for at in row.predictors if begin <= at < end] == list(
            range(end - len(target), end)
        )
        found.append(Tokens(tuple(seen[: len(seen) - len(target) + 1]), target))
        begin = end
    return found


@given(batches)
def test_a_row_holds_its_examples_and_their_shared_beginning_once(batch):
    row = pack(batch)
    assert unpacked(row) == batch
    starts = [e.prompt[: row.lengths[0]] for e in batch]
    assert len(set(starts)) == 1
    longer = {e.prompt[: row.lengths[0] + 1] for e in batch}
    shortest = min(len(e.prompt) for e in batch)
    assert len(longer) > 1 or row.lengths[0] == shortest - 1


@given(batches, st.integers(1, 30))
def test_rows_hold_every_example_once_and_keep_to_their_size(batch, max_tokens):
    packed = rows(batch, max_tokens)
    found = [e for row in packed for e in unpacked(row)]
    assert sorted(found, key=repr) == sorted(batch, key=repr)
    assert all(len(row.ids) <= max_tokens or len(row.lengths) == 2 for row in packed)


def test_short_examples_share_a_row():
    batch = [Tokens((1, 2, 3, n), (9, 9)) for n in range(4)]
    (row,) = rows(batch, 11)
    assert row.ids == [1, 2, 3, 0, 9, 1, 9, 2, 9, 3, 9]
    assert row.lengths == [3, 2, 2, 2, 2]
    assert row.predictors == [3, 4, 5, 6, 7, 8, 9, 10] and row.labels == [9] * 8
    assert len(rows(batch, 10)) == 2


def test_earlier_answers_of_a_chat_are_learned_where_they_stand():
    chat = Tokens((1, 2, 3, 8, 9, 4), (7, 9), earlier=((3, 5),))
    other = Tokens((1, 2, 5), (6, 9))
    assert (chat.learned, other.learned) == (4, 2)
    row = pack([chat, other])
    assert row.lengths == [2, 5, 2]
    assert row.ids == [1, 2, 3, 8, 9, 4, 7, 5, 6]
    assert row.predictors == [2, 3, 5, 6, 7, 8]
    assert row.labels == [8, 9, 7, 9, 6, 9]
    # What all begin with ends before the first answer: of it each example learns its own.
    assert pack([chat, chat]).lengths[0] == 2
