"""The graph's tables: written, ended, merged, exported and erased with their facts."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import FAR_AHEAD, encoder, memory, relate, turn, vectors_by_length

from edgemem.errors import StoreError
from edgemem.pipeline.upkeep import read_relations
from edgemem.results import Entity, Scope
from edgemem.store import NewRelation, Store
from edgemem.store.relations import entity_ids, entity_names, relations, relations_of
from edgemem.store.rows import import_rows

THEN, NOW, LATER = (f"2024-0{month}-01T00:00:00.000+00:00" for month in (1, 6, 9))
ANA, BEN = Scope(user_id="ana"), Scope(user_id="ben")


def tell(store, id, text, at=THEN, **fields):
    with store.transaction() as tx:
        tx.add_memory(memory(id, text, kind="fact", valid_from=at, **fields))
        relate(tx, id, *text.split("; "))


def said(store, scope=ANA, *names, **more):
    found = relations(store, scope, names or None, **more)
    return [f"{r.source} {r.relationship} {r.destination}" for r in found]


def rows(store, table):
    return int(store.select(f"SELECT count(*) FROM {table}")[0][0])


def test_what_several_facts_tell_is_one_relation(store):
    with store.transaction() as tx:
        tx.add_turn(turn("t1"))
        tx.add_turn(turn("t2"))
    tell(store, "a", "Ana sibling_of Bartek; Bartek lives_in Bergen", scope=ANA, sources=("t1",))
    tell(store, "b", "Ana sibling_of Bartek; Bartek drives van", NOW, scope=ANA, sources=("t2",))
    (known,) = [r for r in relations(store, ANA) if r.relationship == "sibling_of"]
    assert (known.memory_id, known.turns, known.valid_from) == ("a", ("t1", "t2"), THEN)
    assert said(store, ANA, "BARTEK") == [
        "Ana sibling_of Bartek",
        "Bartek lives_in Bergen",
        "Bartek drives van",
    ]
    assert said(store, ANA, "bergen") == ["Bartek lives_in Bergen"]
    assert relations(store, ANA)[0].to_dict()["destination"] == "Bartek"


def test_a_relation_of_a_search_begins_on_the_first_day_that_a_fact_names(store):
    tell(store, "late", "Ana lives_in Oslo", NOW, scope=ANA)
    tell(store, "early", "Ana lives_in Oslo", THEN, scope=ANA)
    (known,) = relations(store, ANA)
    assert relations_of(store, ["late", "early"], ANA) == [known]
    assert (known.valid_from, known.memory_id) == (THEN, "early")
    (best,) = relations_of(store, {"late": 0.9, "early": 0.1}, ANA)
    assert (best.valid_from, best.score) == (THEN, 0.9)


def test_two_users_with_one_name_stay_apart(store):
    tell(store, "a", "Rex lives_in Oslo", scope=ANA)
    tell(store, "b", "Rex lives_in Rome", scope=BEN)
    assert len(entity_ids(store, ["rex"], Scope())) == 2
    assert said(store, ANA, "Rex") == ["Rex lives_in Oslo"]
    assert said(store, BEN, "Rex") == ["Rex lives_in Rome"]


def test_a_name_is_the_same_in_all_runs_of_a_user_and_seen_in_its_own(store):
    one, two = Scope(user_id="ana", run_id="1"), Scope(user_id="ana", run_id="2")
    tell(store, "a", "Rex lives_in Oslo", scope=one)
    tell(store, "b", "Rex likes cheese", scope=two)
    assert len(entity_ids(store, ["rex"], ANA)) == 1
    assert said(store, two) == ["Rex likes cheese"]
    assert len(said(store)) == 2


def test_an_alias_is_the_same_entity_and_goes_with_its_fact(store):
    tell(store, "a", "User sibling_of Katarzyna/Kasia; Katarzyna lives_in Oslo", scope=ANA)
    tell(store, "b", "Kasia likes cheese", scope=ANA)
    assert said(store, ANA, "kasia")[-1] == "Katarzyna likes cheese"
    assert store.check() == []
    store.erase(["a"])
    assert "Katarzyna" not in entity_names(store, ["person"])
    read_relations(store, encoder())  # the name went with its fact, so the other is read anew
    assert said(store) == ["Kasia likes cheese"]
    assert rows(store, "aliases") == 0


def test_an_alias_of_two_is_nobodys(store):
    tell(store, "a", "Anna/Ann lives_in Oslo", scope=ANA)
    tell(store, "b", "Annette/Ann lives_in Rome", scope=ANA)
    tell(store, "c", "Ann likes cheese", scope=ANA)
    assert "Ann likes cheese" in said(store)


def test_ten_thousand_aliases_are_looked_up(store):
    many = tuple(f"Rex the {n}" for n in range(10_000))
    with store.transaction() as tx:
        tx.add_memory(memory("a", "Rex lives in Oslo.", kind="fact", scope=ANA))
        oslo = Entity("Oslo", "place")
        tx.set_relations("a", [NewRelation(Entity("Rex", "pet", many), "lives_in", oslo)], 1)
    assert said(store, ANA, "rex THE 9999") == ["Rex lives_in Oslo"]
    store.erase(["a"])
    assert rows(store, "aliases") == rows(store, "entities") == 0


@pytest.mark.parametrize("name", ["张伟", "Żaneta", "Σωκράτης", "محمد", "O'Brien", "😀"])
def test_names_of_any_script(store, name):
    tell(store, "a", f"{name} lives_in Oslo", scope=ANA)
    assert said(store, ANA, name.upper()) == [f"{name} lives_in Oslo"]


def test_nobody_is_related_to_themselves(store):
    tell(store, "a", "Rex friend_of REX ", scope=ANA)
    assert said(store) == [] and rows(store, "entities") == 0


def test_a_circle_of_relations_is_kept_as_told(store):
    tell(store, "a", "Ben child_of Ana", scope=ANA)
    tell(store, "b", "Ana child_of Ben", scope=ANA)
    assert said(store, ANA, "Ana") == ["Ben child_of Ana", "Ana child_of Ben"]


# -- time ------------------------------------------------------------------------------------


def contradict(store):
    tell(store, "old", "Ana lives_in Oslo; Ana works_at Blue Heron", scope=ANA)
    tell(store, "also", "Ana lives_in Oslo", scope=ANA)
    with store.transaction() as tx:
        tx.invalidate("old", NOW)
        new = "Ana lives_in Rome"
        tx.add_memory(memory("new", new, kind="fact", valid_from=NOW, scope=ANA))
        relate(tx, "new", new)
        tx.end_relations("old", NOW, "new")


def test_an_ended_fact_ends_what_it_says_and_its_one_home_everywhere(store):
    contradict(store)
    assert said(store) == ["Ana lives_in Rome"]
    past = relations(store, ANA, include_invalid=True)
    assert {r.valid_to for r in past if r.destination != "Rome"} == {NOW}
    assert {r.invalidated_by for r in past if r.destination != "Rome"} == {"new"}


def test_what_held_then_is_told_of_then(store):
    contradict(store)
    assert said(store, at="2024-03-01") == ["Ana lives_in Oslo", "Ana works_at Blue Heron"]
    assert said(store, at="2023-03-01") == []
    assert said(store, at=LATER) == ["Ana lives_in Rome"]


def test_what_begins_later_does_not_hold_now(store):
    tell(store, "now", "Ana lives_in Oslo", scope=ANA)
    tell(store, "then", "Ana lives_in Rome", FAR_AHEAD, scope=ANA)
    assert said(store) == ["Ana lives_in Oslo"]
    assert said(store, at=FAR_AHEAD) == ["Ana lives_in Rome"]
    assert said(store, include_invalid=True) == ["Ana lives_in Oslo", "Ana lives_in Rome"]
    (planned,) = relations_of(store, ["then"])  # a memory that is found still says what it says
    assert planned.valid_from == FAR_AHEAD


def test_the_next_home_ends_the_one_before_but_not_what_else_its_fact_says(store):
    tell(store, "a", "Ana lives_in Oslo; Ana has_pet Rex", scope=ANA)
    tell(store, "c", "Ana lives_in Rome", FAR_AHEAD, scope=ANA)
    tell(store, "b", "Ana lives_in Bergen", NOW, scope=ANA)  # told last, begins before Rome
    assert said(store, at=FAR_AHEAD) == ["Ana has_pet Rex", "Ana lives_in Rome"]
    assert said(store) == ["Ana has_pet Rex", "Ana lives_in Bergen"]
    assert said(store, at="2024-03-01") == ["Ana lives_in Oslo", "Ana has_pet Rex"]
    oslo, *_ = relations(store, ANA, include_invalid=True)
    assert (oslo.valid_to, oslo.invalidated_by) == (NOW, "b")
    with store.transaction() as tx:
        tx.delete_memory("b", NOW)
    assert said(store) == ["Ana lives_in Oslo", "Ana has_pet Rex"]


def test_somebody_may_like_two_things_and_live_in_a_town_of_a_country(store):
    tell(store, "a", "Ana likes cheese; Ana lives_in Oslo; Ana lives_in Norway", scope=ANA)
    tell(store, "b", "Ana likes wine", NOW, scope=ANA)
    assert len(said(store)) == 4


def test_another_runs_home_ends_none_that_a_run_tells(store):
    one, two = Scope(user_id="ana", run_id="1"), Scope(user_id="ana", run_id="2")
    tell(store, "a", "Ana lives_in Oslo", scope=one)
    tell(store, "b", "Ana lives_in Rome", NOW, scope=two)
    assert said(store, one) == ["Ana lives_in Oslo"]
    assert said(store) == ["Ana lives_in Rome"]
    assert len(relations_of(store, ["a"], one)) == 1 and relations_of(store, ["a"], ANA) == []


# -- with the fact -----------------------------------------------------------------------------


def test_edges_and_orphans_go_with_a_fact_that_is_deleted_edited_or_erased(store):
    tell(store, "a", "Ana sibling_of Bartek; Bartek lives_in Bergen", scope=ANA)
    tell(store, "b", "Ana likes cheese", scope=ANA)
    with store.transaction() as tx:
        tx.delete_memory("a", NOW)
    assert said(store) == ["Ana likes cheese"]
    assert entity_names(store, ["person", "place"]) == ["Ana"]
    with store.transaction() as tx:
        text = "Ana lives in Bergen."
        tx.update_memory("b", memory=text, search_text=text, vectors=None, updated_at=NOW)
    assert said(store) == []
    read_relations(store, encoder())
    assert said(store) == ["Ana lives_in Bergen"]
    store.erase(["b"])
    assert rows(store, "relations") == rows(store, "entities") == 0
    assert store.check() == []


def test_reset_empties_the_graph(store):
    tell(store, "a", "Robert/Bob lives_in Oslo", scope=ANA)
    store.reset()
    assert rows(store, "relations") == rows(store, "entities") == rows(store, "aliases") == 0


def test_an_erased_name_is_in_no_byte_of_the_file(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        tell(store, "a", "User sibling_of Zyxwvuta/Qwertya", scope=ANA)
        store.erase(["a"])
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"zyxwvuta" not in content.lower() and b"qwertya" not in content.lower()


def test_facts_of_an_older_store_are_read_once(store):
    with store.transaction() as tx:
        tx.add_turn(turn("t", "I live in Oslo."))
        tx.add_memory(memory("a", "User lives in Oslo.", kind="fact", sources=("t",)))
        tx.add_memory(memory("b", "User lives in Rome.", kind="fact", sources=("t",)))  # not said
        tx.add_memory(memory("c", "User lives in Paris.", kind="turn"))
    seen: list[tuple[int, int]] = []
    read_relations(store, encoder(), lambda done, of: seen.append((done, of)))
    assert said(store, Scope()) == ["User lives_in Oslo"] and seen == [(2, 2)]
    generation = store.generation()
    read_relations(store, encoder())
    assert store.generation() == generation


def test_the_kept_file_of_schema_1_gets_its_relations_with_their_ends(tmp_path):
    kept = Path(__file__).parent / "fixtures" / "store-v1.db"
    with Store.open(shutil.copy(kept, tmp_path / "store.db")) as store:
        read_relations(store, encoder())
        told = relations(store, Scope(), include_invalid=True)
        assert [(r.source, r.relationship, r.destination, r.valid_to) for r in told][:2] == [
            ("Ada", "lives_in", "Oslo", "2024-05-06T09:00:00.000+00:00"),
            ("Ada", "lives_in", "Rome", "2024-05-10T09:00:00.000+00:00"),
        ]
        assert "boat" not in {r.destination for r in told}  # its fact was deleted
        assert store.check() == []


def test_an_export_carries_relations_their_ends_and_aliases(store):
    contradict(store)
    tell(store, "k", "User sibling_of Katarzyna/Kasia", scope=ANA)
    exported = list(store.export_rows())
    with Store.open(":memory:") as other:
        import_rows(other.transaction, exported, vectors_by_length)
        assert relations(other, ANA, include_invalid=True) == relations(
            store, ANA, include_invalid=True
        )
        assert said(other, ANA, "kasia") == ["User sibling_of Katarzyna"]
        generation = other.generation()
        read_relations(other, encoder())  # nothing is left to read
        assert other.generation() == generation
        assert import_rows(other.transaction, exported, vectors_by_length)["relation"] == 0


def test_what_hits_tell_is_scored_as_the_best_of_them(store):
    with store.transaction() as tx:
        tx.add_turn(turn("t"))
        tx.add_memory(memory("m", "I live in Oslo", kind="turn", sources=("t",)))
    tell(store, "a", "User lives_in Oslo", sources=("t",))
    tell(store, "b", "User likes tea")
    (found,) = relations_of(store, {"m": 0.4})
    assert (found.destination, found.score) == ("Oslo", 0.4)
    assert [r.score for r in relations_of(store, ["a", "b"])] == [None, None]
    assert relations_of(store, {}) == []


NAMES = st.sampled_from(["Ana", "ana", "Ben", "ANA ", "Ｂen", "Ceď"])
EDGES = st.lists(st.tuples(NAMES, st.sampled_from(["lives_in", "friend_of"]), NAMES), max_size=6)


@settings(max_examples=40)
@given(st.lists(st.tuples(EDGES, st.booleans()), max_size=6))
def test_entities_are_those_of_the_relations_that_are_left(
    told,
):
    with Store.open(":memory:") as store:
        for n, (edges, erased) in enumerate(told):
            new = [
                NewRelation(Entity(a, "person"), label, Entity(b, "person"))
                for a, label, b in edges
            ]
            with store.transaction() as tx:
                tx.add_memory(memory(f"m{n}", "x", kind="fact"))
                tx.set_relations(f"m{n}", new, 1)
            if erased:
                store.erase([f"m{n}"])
        ends = {
            row[0]
            for row in store.select(
                "SELECT source FROM relations UNION SELECT target FROM relations"
            )
        }
        assert ends == {row[0] for row in store.select("SELECT id FROM entities")}
        names = store.select("SELECT normalised FROM entities")
        assert len(names) == len(set(names))
        assert store.check() == []


def test_relations_of_an_unknown_fact_are_refused(store):
    with pytest.raises(StoreError, match="no memory with id 'unknown'"), store.transaction() as tx:
        tx.set_relations("unknown", [], 1)
