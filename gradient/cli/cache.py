"""`gradient cache`: binary caches, their keys and their tokens."""

from __future__ import annotations

from typing import Any

import click

from gradient.cache.signing import generate_key_pair
from gradient.cli.context import Context, pass_context
from gradient.cli.failures import CANNOT_RUN, Failure
from gradient.cli.options import SizeType, json_option
from gradient.cli.output import (
    Column,
    age,
    note,
    print_details,
    print_json,
    print_table,
    say,
    size,
)
from gradient.cli.tokens import Token
from gradient.secrets import SecretError, Secrets


@click.group()
def cache() -> None:
    """Create and list binary caches, and the tokens that open them.

    Any Nix client reads a cache at <server>/cache/<name>, and writes with a token that may.
    """


@cache.command()
@click.argument("name")
@click.option("--public", is_flag=True, help="Readable without a token.")
@click.option("--key-name", help="Name of the signing key; <name>-1 by default.")
@click.option(
    "--priority",
    type=click.IntRange(0),
    default=40,
    show_default=True,
    help="Order among a client's caches, low first.",
)
@click.option("--max-nar-size", type=SizeType(), help="Largest path taken, like 16GiB.")
@json_option
@pass_context
def create(
    context: Context,
    *,
    name: str,
    public: bool,
    key_name: str | None,
    priority: int,
    max_nar_size: int | None,
    as_json: bool,
) -> None:
    """Create a cache with a signing key of its own.

    The private key is stored encrypted with the secret of the state folder: run this on a server,
    or with the server's secret file in your state folder.

    \b
    Examples:
      gradient cache create main --public
      gradient cache create private --key-name cache.example.org-1
    """
    try:
        public_key, private_key = generate_key_pair(key_name or f"{name}-1")
    except ValueError as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error
    try:
        secrets = Secrets.from_state_dir(context.config.state_dir)
    except SecretError as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error
    sealed = secrets.encrypt(private_key, f"cache:{name}")
    number = context.value(
        "select gradient.create_cache(p_name => %s, p_key_name => %s, p_public_key => %s,"
        " p_private_key_encrypted => %s, p_public => %s, p_priority => %s, p_max_nar_size => %s)",
        [
            *(name, public_key.partition(":")[0], public_key),
            *(sealed, public, priority, max_nar_size),
        ],
    )
    created = {"id": number, "name": name, "public_key": public_key, "url": url(context, name)}
    if as_json:
        print_json(created)
        return
    say(f"cache {name} created")
    print_details([("url", created["url"]), ("public key", public_key)])


def url(context: Context, name: str) -> str:
    """Where clients find a cache."""
    return f"{context.config.url}/cache/{name}"


@cache.command("list")
@json_option
@pass_context
def list_(context: Context, *, as_json: bool) -> None:
    """List the caches.

    \b
    Examples:
      gradient cache list
      gradient cache list --json
    """
    rows = context.rows("select * from gradient.cache_overview order by name")
    if as_json:
        print_json([_with_url(context, row) for row in rows])
        return
    columns = [
        Column("CACHE", "name"),
        Column("PUBLIC", "public"),
        Column("ACTIVE", "active"),
        Column("PATHS", "paths", right=True),
        Column("SIZE", "size_bytes", size, right=True),
        Column("PROJECTS", "projects"),
        Column("CREATED", "created_at", age),
    ]
    print_table(rows, columns, empty="There is no cache yet: gradient cache create <name>")


def _with_url(context: Context, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "url": url(context, row["name"])}


@cache.command()
@click.argument("name")
@json_option
@pass_context
def show(context: Context, *, name: str, as_json: bool) -> None:
    """Show one cache, with its URL and public key for nix.conf.

    \b
    Examples:
      gradient cache show main
      gradient cache show main --json
    """
    row = context.row("select * from gradient.cache_overview where name = %s", [name])
    if row is None:
        raise Failure(f"there is no cache {name}", hint="gradient cache list")
    shown = _with_url(context, row)
    if as_json:
        print_json(shown)
    else:
        print_details(shown.items())


@cache.command("create-token")
@click.argument("name")
@click.argument("token_name")
@click.option("--write", is_flag=True, help="The token may push as well.")
@json_option
@pass_context
def create_token(
    context: Context, *, name: str, token_name: str, write: bool, as_json: bool
) -> None:
    """Create a token for a cache; it is shown this once.

    Use it as the password in a netrc file (any user name), or as a bearer token.

    \b
    Examples:
      gradient cache create-token private laptop
      gradient cache create-token main ci --write
    """
    token = Token.fresh()
    context.value(
        "select gradient.create_cache_token(%s, %s, %s, %s)",
        [name, token_name, token.sha256, write],
    )
    if as_json:
        print_json({"cache": name, "name": token_name, "can_write": write, "token": token.text})
        return
    say(token.text)
    note("This is the only time the token is shown.")
