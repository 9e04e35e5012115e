"""The configuration: where a value comes from, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradient.config import Config, ConfigError, load


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration and state folders are temporary."""
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "GRADIENT_CONFIG": str(tmp_path / "gradient.toml"),
    }


def write(home: dict[str, str], text: str) -> None:
    Path(home["GRADIENT_CONFIG"]).write_text(text, "utf-8")


def test_without_any_source_the_defaults_hold(home: dict[str, str]) -> None:
    del home["GRADIENT_CONFIG"]
    config = load(environment=home)
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8420)
    assert config.database.url == ""
    assert config.object_store_url == (config.state_dir / "objects").as_uri()
    assert config.url == "http://127.0.0.1:8420"


def test_flags_win_over_the_environment_and_that_over_the_file(home: dict[str, str]) -> None:
    write(
        home, 'instance = "of-file"\n[listen]\nport = 1\nhost = "0.0.0.0"\n[log]\nlevel = "debug"'
    )
    home["GRADIENT_LISTEN_PORT"] = "2"
    home["GRADIENT_LOG_LEVEL"] = "error"
    config = load({"listen.port": 3, "log.level": None}, environment=home)
    assert (config.instance, config.listen.host) == ("of-file", "0.0.0.0")
    assert (config.listen.port, config.log.level) == (3, "error")


def test_the_users_own_file_is_found(home: dict[str, str]) -> None:
    del home["GRADIENT_CONFIG"]
    path = Path(home["XDG_CONFIG_HOME"]) / "gradient" / "gradient.toml"
    path.parent.mkdir(parents=True)
    path.write_text('public_url = "https://ci.example.org/"', "utf-8")
    assert load(environment=home).url == "https://ci.example.org"


def test_store_options_come_from_file_and_environment(home: dict[str, str]) -> None:
    write(home, '[object_store]\nurl = "s3://b/p"\n[object_store.options]\nregion = "x"')
    assert load(environment=home).object_store.options == {"region": "x"}
    home["GRADIENT_OBJECT_STORE_OPTIONS"] = '{"region": "y"}'
    assert load(environment=home).object_store.options == {"region": "y"}


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[listen]\nport = 99999", r"listen\.port \(.*gradient\.toml\): expected `int` <= 65535"),
        (
            "[listen]\nprot = 1",
            r"listen\.prot \(.*\): there is no such key; known are listen\.host",
        ),
        ("lisden = 1", r"lisden \(.*\): there is no such key; known are database\.role_prefix"),
        ('listen = "x"', r"listen \(.*\): expected `object`, got `str`"),
        ('[log]\nlevel = "loud"', r"log\.level \(.*\): invalid enum value 'loud'"),
        ("port == 1", "is not valid TOML"),
        ('public_url = "ci.example.org"', "public_url .*is not an http or https URL"),
        ('[object_store]\nurl = "ftp://x"', r"object_store\.url .*file:///path or s3://"),
        ('state_dir = "here"', "state_dir .*is not an absolute path"),
        ('instance = "two words"', r"instance \(.*\): expected `str` matching"),
    ],
)
def test_a_wrong_value_names_key_source_and_remedy(
    home: dict[str, str], text: str, complaint: str
) -> None:
    write(home, text)
    with pytest.raises(ConfigError, match=complaint):
        load(environment=home)


def test_a_wrong_variable_is_named_as_one(home: dict[str, str]) -> None:
    write(home, "")
    home["GRADIENT_LISTEN_PORT"] = "many"
    with pytest.raises(ConfigError, match=r"listen\.port \(GRADIENT_LISTEN_PORT\): expected `int`"):
        load(environment=home)


def test_a_named_file_that_is_missing_is_an_error(home: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gradient\.toml: No such file"):
        load(environment=home)


def test_an_address_of_version_six_is_bracketed(home: dict[str, str]) -> None:
    del home["GRADIENT_CONFIG"]
    config: Config = load({"listen.host": "::1"}, environment=home)
    assert config.url == "http://[::1]:8420"
