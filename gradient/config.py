"""The configuration: one TOML file, then the environment, then flags; the later wins.

The file is the one that GRADIENT_CONFIG names, else the first that exists of
/etc/gradient/gradient.toml and gradient/gradient.toml in the user's configuration
folder. A variable GRADIENT_LISTEN_PORT sets `port` of the table `listen`.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

SYSTEM_FILE = Path("/etc/gradient/gradient.toml")
SYSTEM_STATE = Path("/var/lib/gradient")


class ConfigError(Exception):
    """A configuration value is missing or wrong; the text names the key and its source."""


class Listen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8420


class Database(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which database; an empty URL means the embedded one in the state folder."""

    url: str = ""
    role_prefix: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = "gradient"


class ObjectStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where NARs and logs live: a folder or an S3-compatible bucket.

    `url` is `file:///path`, or `s3://bucket/prefix` with `options` as obstore takes them
    (endpoint, region, access_key_id, secret_access_key, …). Empty: below the state folder.
    """

    url: str = ""
    options: dict[str, str] = {}


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the program reports: least level, and text for people or JSON for machines."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured of a server, complete and valid."""

    instance: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = msgspec.field(
        default_factory=socket.gethostname
    )
    state_dir: Path = msgspec.field(default_factory=lambda: default_state_dir())
    public_url: str = ""
    listen: Listen = Listen()
    database: Database = Database()
    object_store: ObjectStore = ObjectStore()
    log: Log = Log()

    @property
    def object_store_url(self) -> str:
        """The object store in force, with its default below the state folder."""
        return self.object_store.url or (self.state_dir / "objects").as_uri()

    @property
    def url(self) -> str:
        """The server's address for clients, without a slash at its end."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = f"[{self.listen.host}]" if ":" in self.listen.host else self.listen.host
        return f"http://{host}:{self.listen.port}"


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """/var/lib/gradient for root, the user's own state folder otherwise."""
    if os.geteuid() == 0:
        return SYSTEM_STATE
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gradient"


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Read the configuration in force.

    `flags` maps dotted keys ("listen.port") to values; None values are left out.
    Raises ConfigError naming the key, where it came from, and what is allowed.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, found in (
        *_from_file(environment),
        ("the environment", _from_environment(environment)),
        ("the command line", {k: v for k, v in (flags or {}).items() if v is not None}),
    ):
        for key, value in found.items():
            values[key] = value
            sources[key] = _variable(key) if source == "the environment" else source
    values.setdefault("state_dir", str(default_state_dir(environment)))
    try:
        config = msgspec.convert(_nested(values), Config, strict=False, dec_hook=_other_type)
    except msgspec.ValidationError as error:
        raise ConfigError(_explained(error, sources)) from error
    _check_urls(config, sources)
    return config


def _other_type(wanted: type, value: Any) -> Any:
    """What msgspec does not know by itself: a path, written as a string."""
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"Expected `{wanted.__name__}`, got `{type(value).__name__}`")


def config_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The configuration file in force, or None where there is none."""
    named = environment.get("GRADIENT_CONFIG")
    if named:
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    candidates = (SYSTEM_FILE, Path(base) / "gradient" / "gradient.toml")
    return next((path for path in candidates if path.is_file()), None)


def _from_file(environment: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    path = config_file(environment)
    if path is None:
        return []
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return [(str(path), _flat(parsed))]


def _keys() -> dict[str, type]:
    """Every dotted key that can be set, with the type that holds it."""
    keys: dict[str, type] = {}
    for item in msgspec.structs.fields(Config):
        if isinstance(item.type, type) and issubclass(item.type, msgspec.Struct):
            keys.update(
                {
                    f"{item.encode_name}.{inner.encode_name}": item.type
                    for inner in msgspec.structs.fields(item.type)
                }
            )
        else:
            keys[item.encode_name] = Config
    return keys


def _variable(key: str) -> str:
    return "GRADIENT_" + key.upper().replace(".", "_")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in _keys():
        value = environment.get(_variable(key))
        if value is None:
            continue
        if key == "object_store.options":
            try:
                found[key] = msgspec.json.decode(value, type=dict[str, str])
            except msgspec.DecodeError as error:
                raise ConfigError(
                    f'{_variable(key)} must be a JSON object of strings, like {{"region": "x"}}: '
                    f"{error}"
                ) from error
        else:
            found[key] = value
    return found


def _flat(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """A TOML document as dotted keys; what is not a table of ours stays as it is."""
    flat: dict[str, Any] = {}
    tables = {key.split(".")[0] for key in _keys() if "." in key}
    for key, value in parsed.items():
        if key in tables and isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        table, _, inner = key.partition(".")
        if inner:
            holder = nested.setdefault(table, {})
            # A scalar where a table belongs stays, for the validation to complain about.
            if isinstance(holder, dict):
                holder[inner] = value
        else:
            nested[table] = value
    return nested


def _explained(error: msgspec.ValidationError, sources: Mapping[str, str]) -> str:
    """msgspec's complaint with the key and its source in front."""
    problem, _, path = str(error).partition(" - at `$")
    key = path.rstrip("`").lstrip(".").replace("[...]", "")
    if problem.startswith("Object contains unknown field"):
        unknown = problem.split("`")[1]
        key = f"{key}.{unknown}" if key else unknown
        known = sorted(name for name in _keys() if name.startswith(key.rpartition(".")[0]))
        return f"{_where(key, sources)}: there is no such key; known are {', '.join(known)}"
    return f"{_where(key, sources)}: {problem[0].lower()}{problem[1:]}"


def _where(key: str, sources: Mapping[str, str]) -> str:
    source = sources.get(key)
    if source is None:
        source = next((src for name, src in sources.items() if name.startswith(key)), None)
    return f"{key} ({source})" if source else key


def _check_urls(config: Config, sources: Mapping[str, str]) -> None:
    if not config.state_dir.is_absolute():
        raise ConfigError(
            f"{_where('state_dir', sources)}: {str(config.state_dir)!r} is not an absolute path"
        )
    if config.public_url and urlsplit(config.public_url).scheme not in ("http", "https"):
        raise ConfigError(
            f"{_where('public_url', sources)}: {config.public_url!r} is not an http or https URL"
        )
    if urlsplit(config.object_store_url).scheme not in ("file", "s3"):
        raise ConfigError(
            f"{_where('object_store.url', sources)}: {config.object_store.url!r}: "
            "use file:///path or s3://bucket/prefix"
        )
