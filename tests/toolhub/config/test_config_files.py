"""Reading files: formats, lines, and what can be wrong with a file before its keys are looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.config import Config, load_config
from toolhub.errors import ConfigError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes, name: str = "hub.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def load(path: Path) -> Config:
    return load_config(path, environ={})


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value


@pytest.mark.quick
def test_yaml_and_json_give_the_same_configuration(write: Write) -> None:
    from_yaml = load(write("hub: {port: 9000}\nservers:\n  a:\n    command: x\n    args: [-v, 1]\n"))
    json_text = '{"hub": {"port": 9000}, "servers": {"a": {"command": "x", "args": ["-v", 1]}}}'
    from_json = load(write(json_text, "hub.json"))
    assert from_yaml.servers == from_json.servers
    assert from_yaml.hub.port == from_json.hub.port == 9000


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json"])
@pytest.mark.parametrize("content", ["", " \n", "\ufeff"])
def test_an_empty_file_is_an_empty_configuration(write: Write, name: str, content: str) -> None:
    assert load(write(content, name)).servers == {}


def test_empty_sections_are_as_good_as_none(write: Write) -> None:
    config = load(write("hub:\nlimits:\nservers:\n  a:\n    command: x\n    env:\n    args:\n    tools:\n"))
    assert config.servers["a"].env == {} and config.servers["a"].args == []
    assert config.limits.queue == 1024


def test_a_byte_order_mark_and_tabs_in_json_are_fine(write: Write) -> None:
    path = write('\ufeff{\n\t"servers": {\n\t\t"a": {"command": "x"}\n\t}\n}', "mcp.json")
    assert load(path).servers["a"].command == "x"


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    assert "no such file" in str(refusal(tmp_path / "none.yaml"))


def test_a_directory_says_so(tmp_path: Path) -> None:
    assert "is a directory" in str(refusal(tmp_path))


def test_text_that_is_not_utf8_says_so(write: Write) -> None:
    assert "not UTF-8" in str(refusal(write(b"hub: \xff\xfe")))


def test_an_unreadable_path_says_so(write: Write) -> None:
    assert "cannot be read: Not a directory" in str(refusal(write("") / "hub.yaml"))


def test_an_unknown_suffix_names_the_known_ones(write: Write) -> None:
    assert ".yaml, .yml, .json" in str(refusal(write("", "hub.toml")))


@pytest.mark.parametrize(("content", "kind"), [("- a", "a list"), ("word", "a string"), ("3", "a number")])
def test_a_file_that_is_no_mapping_is_refused(write: Write, content: str, kind: str) -> None:
    assert f"expected a mapping of sections, found {kind}" in str(refusal(write(content)))


@pytest.mark.quick
def test_a_json_syntax_error_gives_line_and_column(write: Write) -> None:
    error = refusal(write('{\n\t"servers": {,}\n}', "mcp.json"))
    assert error.line == 2
    assert "column 14" in str(error)


def test_a_yaml_syntax_error_gives_line_and_column(write: Write) -> None:
    error = refusal(write("hub:\n  port: 1\n bad: [\n"))
    assert error.line == 3 and "not valid YAML" in str(error) and "column 2" in str(error)


@pytest.mark.parametrize(
    ("name", "text", "line", "advice"),
    [
        ("a.yaml", "servers:\n  a:\n\tcommand: x\n", 3, "indented with a tab"),
        ("a.yaml", "servers:\n a:\n   command: x\n  b:\n    command: y\n", 4, "is the line indented as far as"),
        ("a.json", '{"servers": {\n"a": {"command": "x",}}}', 2, "remove the comma before the closing bracket"),
        ("a.json", '{"servers": {"a": {"args": ["x", ]}}}', 1, "remove the comma before the closing bracket"),
        ("a.json", '{ // mine\n"servers": {}}', 1, "JSON has no comments"),
    ],
)
def test_a_common_slip_is_told_with_what_to_do(write: Write, name: str, text: str, line: int, advice: str) -> None:
    error = refusal(write(text, name))
    assert error.line == line and advice in str(error)


def test_an_unquoted_reference_in_flow_style_is_explained(write: Write) -> None:
    error = refusal(write("servers:\n  a: {command: x, env: {K: ${K}}}\n"))
    assert error.line == 2 and 'needs quotes: "${NAME}"' in str(error)


@pytest.mark.parametrize("value", ["*hunter2", "!hunter2", "!hunter2!x", "&hunter2 *hunter3"])
def test_a_password_that_looks_like_yaml_syntax_is_not_repeated(write: Write, value: str) -> None:
    error = refusal(write(f"servers:\n  a:\n    command: x\n    env:\n      PASSWORD: {value}\n"))
    assert "hunter" not in str(error) and error.line == 5


@pytest.mark.parametrize("name", ["hub.yaml", "hub.json"])
def test_a_duplicate_key_is_refused_with_its_line(write: Write, name: str) -> None:
    content = '{"servers": {\n  "a": {"command": "x"},\n  "a": {"command": "y"}\n}}'
    error = refusal(write(content, name))
    assert error.line == 3
    assert error.key == "servers.a"
    assert "duplicate key 'a'" in str(error)


def test_lines_of_json_survive_characters_that_yaml_does_not_know(write: Write) -> None:
    error = refusal(write('{\n"servers": {"a": {"command": "\x7f\U0001f600\\/"}},\n"hubb": {}}', "hub.json"))
    assert error.line == 3


def test_json_that_yaml_cannot_follow_is_read_without_lines(write: Write) -> None:
    path = write('{"servers"\n:\n{"a": {"command": "x"}}}', "hub.json")
    assert load(path).servers["a"].command == "x"


@pytest.mark.parametrize("name", ["hub.yaml", "hub.json"])
def test_endless_nesting_is_refused(write: Write, name: str) -> None:
    assert "nested too deeply" in str(refusal(write("[" * 100_000, name)))


def test_a_number_nobody_can_read_is_refused(write: Write) -> None:
    assert "too many digits" in str(refusal(write("1" * 5000, "hub.json")))
    assert "does not fit its tag" in str(refusal(write("hub: {port: !!int x}")))


def test_aliases_that_stand_for_too_many_values_are_refused(write: Write) -> None:
    values = [f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' if n else 'x' for _ in range(9))}]" for n in range(12)]
    aliases = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    merged = ["a0: &a0 {b: c}", *aliases]
    for lines in (values, merged):
        assert "use fewer aliases" in str(refusal(write("\n".join(lines))))


def test_an_alias_inside_itself_is_refused(write: Write) -> None:
    error = refusal(write("hub: &h\n  port: *h\n"))
    assert error.line == 2 and "alias" in str(error)


def test_a_key_that_is_no_text_is_refused(write: Write) -> None:
    error = refusal(write("hub:\n  ? [a]\n  : 1\n"))
    assert error.line == 2 and "a key must be a text" in str(error)


def test_merged_mappings_keep_the_lines_of_what_they_bring(write: Write) -> None:
    content = "servers:\n  a: &a\n    command: x\n    instances: 0\n  b:\n    url: ''\n    <<: *a\n"
    lines = str(refusal(write(content))).splitlines()
    assert any(":4: servers.b.instances" in line for line in lines)
    assert any(":6: servers.b.url" in line for line in lines)


def test_merging_a_list_of_mappings_works(write: Write) -> None:
    content = "servers:\n  a: &a {command: x}\n  b: &b {command: y, cwd: /}\n  c: {<<: [*a, *b]}\n"
    config = load(write(content))
    assert (config.servers["c"].command, config.servers["c"].cwd) == ("x", "/")


def test_plain_yaml_scalars_reach_a_server_as_they_are_written(write: Write) -> None:
    content = """
servers:
  a:
    command: x
    args: [1, 1.10, true, 0080, 2024-01-01, 12:30]
    env: {DEBUG: yes, PORT: 0080, SINCE: 2024-01-01, ON: true, UNSET: ~, GONE: null, on: 1, 5: five}
"""
    spec = load(write(content)).servers["a"]
    assert spec.args == ["1", "1.10", "true", "0080", "2024-01-01", "12:30"]
    assert spec.env == {
        "DEBUG": "yes", "PORT": "0080", "SINCE": "2024-01-01", "ON": "true", "on": "1", "5": "five"
    }  # fmt: skip


def test_a_date_is_text_elsewhere_too(write: Write) -> None:
    content = "servers: {a: {builtin: 'm:f', options: {since: 2024-01-01}, description: 2024-01-01}}"
    spec = load(write(content)).servers["a"]
    assert spec.options == {"since": "2024-01-01"} and spec.description == "2024-01-01"


@pytest.mark.quick
def test_every_problem_is_reported_in_the_order_of_the_file(write: Write) -> None:
    path = write("hub:\n  port: x\nservers:\n  a:\n    command: ${NOPE}\n    instances: 0\nlimit: {}\n")
    error = refusal(path)
    assert [line.split(": ")[:2] for line in str(error).splitlines()] == [
        [f"{path}:2", "hub.port"],
        [f"{path}:5", "servers.a.command"],
        [f"{path}:6", "servers.a.instances"],
        [f"{path}:7", "limit"],
    ]
    assert (error.path, error.line, error.key) == (str(path), 2, "hub.port")


words = st.sampled_from(
    [
        "hub",
        "servers",
        "a",
        "command",
        "env",
        "args",
        ": ",
        "- ",
        "\n",
        "  ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        '"',
        "'",
    ]
    + [
        "&x ",
        "*x",
        "<<: ",
        "!t ",
        "? ",
        "| ",
        "#",
        "~",
        "1",
        "0x",
        "true",
        "${A",
        "}",
        "\t",
        "\r",
        "\0",
        "\u2028",
    ]
)


@given(st.lists(words | st.text(max_size=3)).map("".join), st.sampled_from(["fuzz.yaml", "fuzz.json"]))
def test_any_text_is_a_configuration_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(path)
    except ConfigError as error:
        assert str(error).startswith(str(path))
