"""Folders and settings: precedence, what is refused, and that writing keeps what it should."""

import json
import os
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgemem import config
from edgemem.cachefile import lock_file
from edgemem.config import load_settings, set_value, unread, unset_value
from edgemem.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("EDGEMEM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(home, text):
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(text, encoding="utf-8")


def test_home_holds_data_cache_and_configuration(home):
    assert config.data_dir() == config.cache_dir() == config.config_dir() == home
    assert config.config_file() == home / "config.toml"


def test_without_home_the_folders_are_the_platforms(monkeypatch):
    monkeypatch.delenv("EDGEMEM_HOME")
    for folder in (config.data_dir(), config.cache_dir(), config.config_dir()):
        assert folder.is_absolute()
        assert "edgemem" in folder.parts


def test_defaults_are_read_and_no_folder_is_made(home):
    s = load_settings()
    assert s.db == home / "memory.db" and not home.exists()
    assert (s.user_id, s.n_ctx, s.n_threads, s.n_gpu_layers, s.top_k, s.experts) == (
        "default", 2048, None, 0, 10, "open",
    )  # fmt: skip


def test_the_file_beats_the_default_and_the_environment_beats_the_file(home, monkeypatch):
    write(home, 'top_k = 5\nuser_id = "ada"\n')
    assert (load_settings().top_k, load_settings().user_id) == (5, "ada")
    monkeypatch.setenv("EDGEMEM_TOP_K", "7")
    assert (load_settings().top_k, load_settings().user_id) == (7, "ada")


def test_vectors_are_float32_unless_int8_is_chosen(home, monkeypatch):
    assert load_settings().vectors == "float32"
    set_value("vectors", "int8")
    assert load_settings().vectors == "int8"
    monkeypatch.setenv("EDGEMEM_VECTORS", "int4")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == (
        "Setting vectors = 'int4' in the environment (EDGEMEM_VECTORS) is not allowed: it must be "
        "float32 or int8. Correct it, or remove it to use the default."
    )


def test_an_empty_variable_is_no_setting_and_other_variables_are_left_alone(monkeypatch):
    monkeypatch.setenv("EDGEMEM_TOP_K", "")
    monkeypatch.setenv("EDGEMEM_BACKEND", "numpy")
    assert load_settings().top_k == 10


def test_a_relative_db_in_the_file_lies_beside_the_file(home):
    write(home, 'db = "mine.db"\n')
    assert load_settings().db == home / "mine.db"
    write(home, 'db = ":memory:"\n')
    assert str(load_settings().db) == ":memory:"


@pytest.mark.parametrize("key", ["names", "never_send", "ask_when"])
def test_texts_with_commas_between_them_are_several(home, monkeypatch, key):
    set_value(f"cloud.{key}", "Anna Kowalska, Merel,")
    assert getattr(load_settings().cloud, key) == ("Anna Kowalska", "Merel")
    monkeypatch.setenv(f"EDGEMEM_CLOUD_{key.upper()}", "one,two words\nthree")
    assert getattr(load_settings().cloud, key) == ("one", "two words", "three")


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("salary, diagnosis", ("salary", "diagnosis")),
        ("salary, /a{1,3}/ , b", ("salary", "/a{1,3}/", "b")),
        (r"/\d{1,2}/\d{1,2}/,b", (r"/\d{1,2}/\d{1,2}/", "b")),
        ("/etc, and/or", ("/etc", "and/or")),
        ('["a, b", "/c/"]', ("a, b", "/c/")),
    ],
)
def test_a_list_as_text_is_split_at_commas_outside_expressions(home, text, patterns):
    set_value("cloud.never_send", text)
    assert load_settings().cloud.never_send == patterns


def test_a_list_in_the_file_stays_as_it_is(home):
    write(home, '[cloud]\nnever_send = ["Smith, John", "/a{1,3}/"]\n')
    assert load_settings().cloud.never_send == ("Smith, John", "/a{1,3}/")


def test_settings_become_json(home):
    out = json.loads(json.dumps(load_settings().to_dict()))
    assert out["db"] == str(home / "memory.db")
    assert out["n_threads"] is None


def test_a_setting_that_older_versions_had_is_passed_over(home):
    write(home, "ahead_percent = 25\ntop_k = 7\n[cloud]\nsecond_price = 2\n")
    assert load_settings().top_k == 7
    set_value("top_k", 8)
    assert "top_k = 8\n" in (home / "config.toml").read_text()
    for key in ("ahead_percent", "cloud.second_price"):
        assert unread()[key].startswith(f"`edgemem config unset {key}` takes it out of ")
        unset_value(key)
    assert unread() == {}
    with pytest.raises(ConfigError, match="Unknown setting 'ahead_percent' in the call"):
        set_value("ahead_percent", 5)


def test_an_unknown_key_names_the_key_the_file_and_the_allowed_ones(home):
    write(home, "topk = 5\n")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == (
        f"Unknown setting 'topk' in {home / 'config.toml'}. Allowed: db, user_id, model, embedder, "
        "experts, mmproj, reader, n_ctx, n_threads, n_gpu_layers, top_k, vectors, "
        "retrieval, tuned, encryption, memory_limit, image_place, image_text, image_embedder, "
        "cloud.base_url, cloud.model, "
        "cloud.api_key_env, cloud.monthly_budget, cloud.timeout_s, cloud.max_retries, "
        "cloud.max_tokens, cloud.max_tokens_name, cloud.context_tokens, cloud.compression, "
        "cloud.min_confidence, cloud.images, cloud.ask_when, "
        "cloud.never_send, cloud.names. Correct or remove it."
    )


@pytest.mark.parametrize(
    "line",
    ["top_k = 0", "top_k = -3", "top_k = true", "top_k = 1.5", 'top_k = "5"', "[top_k]",
     "n_gpu_layers = -2", "n_ctx = 3", "n_threads = 1979-05-27", "user_id = 4", 'user_id = "  "',
     'db = "a\\u0000b"', 'vectors = "float16"', "vectors = 8"],
)  # fmt: skip
def test_a_bad_value_names_the_key_and_the_file(home, line):
    write(home, line + "\n")
    key = line.strip("[]").split(" ")[0]
    with pytest.raises(ConfigError, match=rf"Setting {key} = .* must be") as caught:
        load_settings()
    assert str(home / "config.toml") in str(caught.value)


def test_a_bad_variable_is_named(monkeypatch):
    monkeypatch.setenv("EDGEMEM_N_CTX", "many")
    with pytest.raises(ConfigError, match=r"'many' in the environment \(EDGEMEM_N_CTX\).*64 to"):
        load_settings()


@pytest.mark.parametrize(
    "text",
    [b"top_k = ", b"\xff\xfe", b"a = 1\na = 2", b"top_k = " + b"9" * 5000, b"a = " + b"[" * 5000],
)
def test_a_file_that_is_not_toml_is_refused_and_kept(home, text):
    home.mkdir()
    (home / "config.toml").write_bytes(text)
    for act in (load_settings, lambda: set_value("top_k", 3)):
        with pytest.raises(ConfigError, match="is not TOML"):
            act()
    assert (home / "config.toml").read_bytes() == text


def test_set_value_converts_text_and_keeps_comments_and_other_lines(home):
    write(home, "# mine\ntop_k = 5  # few\nuser_id = 'ada'\n")
    assert set_value("top_k", "6") == home / "config.toml"
    assert load_settings().top_k == 6
    assert (home / "config.toml").read_text() == "# mine\nuser_id = 'ada'\ntop_k = 6\n"
    assert {p.name for p in home.iterdir()} == {"config.toml", "config.toml.lock"}


def test_settings_that_are_set_and_unset_at_once_all_stay(home):
    write(home, "retrieval = 'careful'\n")
    given = {"top_k": 7, "n_threads": 2, "vectors": "int8", "user_id": "ana", "image_place": "keep"}
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            done = [pool.submit(set_value, *pair) for pair in given.items()]
            done.append(pool.submit(unset_value, "retrieval"))
            assert {each.result() for each in done} == {home / "config.toml"}
            assert tomllib.loads((home / "config.toml").read_text()) == given
            write(home, "retrieval = 'careful'\n")


def test_a_change_under_way_in_another_process_is_waited_for_and_then_named(home, monkeypatch):
    monkeypatch.setattr(config, "_LOCK_S", 0.1)
    home.mkdir()
    with lock_file(home / "config.toml.lock", 0), pytest.raises(ConfigError, match="Try again"):
        set_value("top_k", 5)


def test_a_byte_order_mark_is_read_over(home):
    write(home, "\ufefftop_k = 5\n")
    assert load_settings().top_k == 5
    set_value("user_id", "ana")
    assert (load_settings().top_k, load_settings().user_id) == (5, "ana")


def test_set_value_rewrites_what_it_cannot_edit_by_line(home):
    write(home, '"top_k" = 5\nuser_id = """a\nb"""\n')
    set_value("top_k", 6)
    assert tomllib.loads((home / "config.toml").read_text()) == {"top_k": 6, "user_id": "a\nb"}


@pytest.mark.parametrize(
    ("key", "given", "file"),
    [("db", "here.db", True), ("db", ":memory:", False), ("experts", "./open", True),
     ("experts", "open", False), ("model", "m.gguf", True), ("model", "some-model", False),
     ("embedder", "m.gguf", True), ("embedder", "some-model", False)],
)  # fmt: skip
def test_a_file_that_is_set_means_the_working_folder_and_a_name_stays_one(
    tmp_path, monkeypatch, key, given, file
):
    (tmp_path / "open").mkdir()
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    set_value(key, given)
    assert str(getattr(load_settings(), key)) == (str(tmp_path / given) if file else given)


def test_a_home_folder_that_is_not_there_is_named(home, monkeypatch):
    with pytest.raises(ConfigError, match=r"'~no-such-user/a\.db' in the call"):
        set_value("db", "~no-such-user/a.db")
    monkeypatch.setenv("EDGEMEM_DB", "~no-such-user/a.db")
    with pytest.raises(ConfigError, match="EDGEMEM_DB"):
        load_settings()
    monkeypatch.setenv("EDGEMEM_HOME", "~no-such-user")
    with pytest.raises(ConfigError, match="EDGEMEM_HOME"):
        load_settings()


def test_unset_value_brings_the_default_back():
    set_value("top_k", 5)
    set_value("n_threads", 2)
    unset_value("top_k")
    unset_value("top_k")
    assert (load_settings().top_k, load_settings().n_threads) == (10, 2)


def test_a_wrong_setting_is_replaced_and_a_wrong_or_unknown_one_is_taken_out(home):
    write(home, "top_k = 'x'\n")
    set_value("top_k", "6")
    assert load_settings().top_k == 6
    write(home, "top_k = 'x'\nn_ctx = 'y'  # mine\ncolour = 3\nuser_id = 'ada'\n")
    with pytest.raises(ConfigError, match="n_ctx = 'y'"):
        set_value("top_k", "6")
    for key in ("colour", "n_ctx", "top_k"):
        unset_value(key)
    assert (home / "config.toml").read_text() == "user_id = 'ada'\n"
    with pytest.raises(ConfigError, match="Unknown setting 'colour'"):
        unset_value("colour")


@pytest.mark.parametrize(
    ("key", "value"), [("nope", 1), ("top_k", "x"), ("user_id", "a\0b"), ("user_id", "\ud800")]
)
def test_set_value_refuses_and_writes_nothing(home, key, value):
    with pytest.raises(ConfigError):
        set_value(key, value)
    assert not home.exists()


def test_a_file_that_cannot_be_written_is_a_config_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="settings file"):
        set_value("top_k", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example('Ærlig 😀 "quoted" \\ \x7f\ttab')
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_text_survives_writing(text):
    if not text.strip():
        return
    config.config_file().unlink(missing_ok=True)
    set_value("user_id", text)
    set_value("top_k", 3)
    assert load_settings().user_id == text
