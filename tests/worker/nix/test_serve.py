"""The serve protocol against real Nix: queries, transfers, builds, and what each answer says."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nix_store import NixStore
from tests.worker.nix.support import Nix, processes_with
from worker.nix.errors import StoreFaultError
from worker.nix.serve import BuildResult, BuildStatus, PathInfo, ServeProcess
from worker.nix.settings import NixSettings

pytestmark = pytest.mark.nix

ABSENT = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-absent"


async def build(serve: ServeProcess, nix: Nix, expression: str, **limits: int) -> BuildResult:
    """Build an expression; its log is of no interest."""
    return await serve.build(nix.derivation(expression).request(**limits), lambda _: None)


async def read(serve: ServeProcess, info: PathInfo) -> bytes:
    """The whole NAR of a path."""
    return b"".join([piece async for piece in serve.dump(info)])


async def pieces(nar: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    """A NAR as it comes from the network."""
    for start in range(0, len(nar), size):
        yield nar[start : start + size]


async def test_the_lower_of_both_versions_is_spoken(serve: ServeProcess) -> None:
    assert 0x206 <= serve.version <= 0x207


# -- builds ------------------------------------------------------------------------------------

WORKING = {
    "several outputs": """
        sh "several" "echo out > $out; echo dev > $dev" { outputs = [ "out" "dev" ]; }""",
    "fixed output": 'sh "fixed" "echo fixed > $out" fixed',
    "structured attributes": """
        sh "structured" ''
          . ./.attrs.sh
          grep -q hello .attrs.json && echo x > "''${outputs[out]}"
        '' { __structuredAttrs = true; greeting = "hello"; builder = "/bin/bash"; }""",
    "passAsFile": """
        sh "pass" "grep -q hello $textPath && echo x > $out"
          { passAsFile = [ "text" ]; text = "hello"; }""",
}


@pytest.mark.parametrize("expression", WORKING.values(), ids=WORKING.keys())
async def test_a_derivation_of_this_shape_builds_without_its_drv_closure(
    serve: ServeProcess, nix: Nix, expression: str
) -> None:
    built = nix.derivation(expression)
    result = await serve.build(built.request(), lambda _: None)
    assert result.status == BuildStatus.BUILT
    assert (result.times_built, result.message) == (1, "")
    paths = {output.path for output in built.derivation.outputs.values()}
    assert await serve.valid_paths(paths) == paths


async def test_a_builder_gets_the_references_graph_it_exports(
    serve: ServeProcess, nix: Nix
) -> None:
    dep = 'sh "dep" "echo dep > $out" { }'
    assert (await build(serve, nix, dep)).success
    expression = f"""
        let dep = {dep}; in sh "graph" "grep -q ${{dep}} graph && echo x > $out"
          {{ exportReferencesGraph = [ "graph" dep ]; }}"""
    assert (await build(serve, nix, expression)).status == BuildStatus.BUILT


async def test_a_drv_can_be_an_input_source(serve: ServeProcess, nix: Nix) -> None:
    built = nix.derivation("""
        let inner = sh "inner" "true" { };
        in sh "outer" "cp $drv $out" { drv = builtins.unsafeDiscardOutputDependency inner.drvPath; }
    """)
    assert any(path.endswith("inner.drv") for path in built.derivation.input_srcs)
    result = await serve.build(built.request(), lambda _: None)
    assert result.status == BuildStatus.BUILT


async def test_a_second_store_builds_with_nothing_but_the_outputs_that_are_used(
    settings: NixSettings, nix: Nix, own_store: NixStore, tmp_path: Path
) -> None:
    two = 'sh "two" "echo out > $out; echo dev > $dev" { outputs = [ "out" "dev" ]; }'
    user = nix.derivation(f'let two = {two}; in sh "user" "cat ${{two.dev}} > $out" {{ }}')
    request = user.request()
    (dev,) = request.inputs
    nix.build(next(iter(user.derivation.input_drvs)))
    serve = await ServeProcess.start(settings)
    info = (await serve.path_infos([dev]))[dev]
    nar = await read(serve, info)
    await serve.close()

    with NixStore(tmp_path / "second-store").entered():
        second = await ServeProcess.start(settings)
        await second.add(info, pieces(nar))
        result = await second.build(request, lambda _: None)
        assert result.status == BuildStatus.BUILT
        assert Path(user.out).read_text() == "dev\n"
        assert {path.name for path in Path("/nix/store").glob("*-*")} == {
            Path(dev).name,
            Path(user.out).name,
        }
        await second.close()


async def test_a_build_that_is_done_already_is_already_valid_and_runs_no_builder(
    serve: ServeProcess, nix: Nix
) -> None:
    await build(serve, nix, 'sh "once" "echo x > $out" { }')
    again = await build(serve, nix, 'sh "once" "echo x > $out" { }')
    assert (again.status, again.times_built) == (BuildStatus.ALREADY_VALID, 0)


@pytest.mark.parametrize(
    ("expression", "status", "times_built", "message"),
    [
        ('sh "a" "exit 3" { }', BuildStatus.PERMANENT_FAILURE, 1, "failed with exit code 3"),
        ('sh "a" "exit 3" fixed', BuildStatus.TRANSIENT_FAILURE, 1, "failed with exit code 3"),
        ('sh "a" "echo other > $out" fixed', BuildStatus.OUTPUT_REJECTED, 1, "hash mismatch"),
        ('sh "a" "true" { }', BuildStatus.OUTPUT_REJECTED, 1, "failed to produce output path"),
        ('sh "a" "kill -9 $$" { }', BuildStatus.PERMANENT_FAILURE, 1, "signal 9 (Killed)"),
        ('sh "a" "true" { system = "riscv64-linux"; }', BuildStatus.MISC_FAILURE, 0, "required"),
        (
            'sh "a" "true" { requiredSystemFeatures = [ "nowhere" ]; }',
            BuildStatus.MISC_FAILURE,
            0,
            "features {nowhere}",
        ),
        (
            'sh "a" "true" { dep = sh "b" "echo > $out" { }; }',
            BuildStatus.MISC_FAILURE,
            0,
            "-b' of ",
        ),
    ],
)
async def test_an_unsuccessful_end_has_its_status_and_a_plain_message(
    serve: ServeProcess,
    nix: Nix,
    expression: str,
    status: BuildStatus,
    times_built: int,
    message: str,
) -> None:
    result = await build(serve, nix, expression)
    assert (result.status, result.times_built) == (status, times_built)
    assert message in result.message
    assert "\x1b" not in result.message
    assert serve.alive


async def test_both_time_limits_give_one_status_and_only_the_message_tells(
    serve: ServeProcess, nix: Nix
) -> None:
    total = await build(serve, nix, 'sh "t" "while sleep 0.1; do echo; done" { }', timeout=1)
    silent = await build(serve, nix, 'sh "s" "sleep 60" { }', max_silent=1)
    assert total.status == silent.status == BuildStatus.TIMED_OUT
    assert "of silence" not in total.message
    assert "of silence" in silent.message


async def test_too_long_a_log_has_a_status_of_its_own(serve: ServeProcess, nix: Nix) -> None:
    result = await build(serve, nix, 'sh "l" "while :; do echo xxxxx; done" { }', max_log_size=5000)
    assert result.status == BuildStatus.LOG_LIMIT_EXCEEDED


async def test_a_log_is_passed_on_raw_and_whole_before_the_build_returns(
    serve: ServeProcess, nix: Nix
) -> None:
    log = bytearray()
    script = (
        r"printf 'caf\\351 \\200\\n'; i=0; while [ $i -lt 20000 ]; do echo line $i; "
        r"i=$((i+1)); done; printf 'no newline'; echo x > $out"
    )
    built = nix.derivation(f'sh "log" "{script}" {{ }}')
    result = await serve.build(built.request(), log.extend)
    expected = b"caf\xe9 \x80\n" + b"".join(b"line %d\n" % i for i in range(20000))
    assert result.success
    assert bytes(log).rstrip(b"\n") == expected + b"no newline"


async def test_a_log_belongs_to_its_own_build_only(serve: ServeProcess, nix: Nix) -> None:
    logs = [bytearray(), bytearray()]
    for number, log in enumerate(logs):
        built = nix.derivation(f'sh "log-{number}" "echo number {number}; echo x > $out" {{ }}')
        await serve.build(built.request(), log.extend)
    assert [bytes(log) for log in logs] == [b"number 0\n", b"number 1\n"]


# -- faults ------------------------------------------------------------------------------------


async def test_a_protocol_error_ends_the_process_and_is_a_store_fault_with_its_words(
    settings: NixSettings, serve: ServeProcess
) -> None:
    with pytest.raises(StoreFaultError, match=r"absent.* is not valid"):
        await serve.closure([ABSENT])
    assert not serve.alive
    with pytest.raises(StoreFaultError, match="has ended"):
        await serve.valid_paths([ABSENT])
    replacement = await ServeProcess.start(settings)
    assert await replacement.valid_paths([ABSENT]) == set()
    await replacement.close()


async def test_a_process_that_is_killed_in_a_build_is_a_store_fault(
    serve: ServeProcess, nix: Nix
) -> None:
    started = asyncio.Event()
    built = nix.derivation('sh "long" "echo started; sleep 60" { }')
    task = asyncio.create_task(serve.build(built.request(), lambda _: started.set()))
    await asyncio.wait_for(started.wait(), 20)
    subprocess.run(["kill", "-9", str(serve.command_pid)], check=True)
    with pytest.raises(StoreFaultError, match="nix-store ended"):
        await asyncio.wait_for(task, 20)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "closed input"])
async def test_the_store_process_ends_with_its_builder_when_it_is_told_to(
    serve: ServeProcess, nix: Nix, how: str
) -> None:
    word = f"gradient-test-{secrets.token_hex(8)}"
    started = asyncio.Event()
    built = nix.derivation(f'sh "long" "echo started; sleep 300; : {word}" {{ }}')
    task = asyncio.create_task(serve.build(built.request(), lambda _: started.set()))
    await asyncio.wait_for(started.wait(), 20)
    assert processes_with(word)
    if how == "closed input":
        serve._input.close()
    else:
        os.kill(serve.command_pid, signal.Signals[how])
    with pytest.raises(StoreFaultError):
        await asyncio.wait_for(task, 20)
    assert processes_with(word) == []


# -- what the process remembers ----------------------------------------------------------------


async def test_query_with_lock_sees_what_others_added_and_deleted_meanwhile(
    serve: ServeProcess, nix: Nix, tmp_path: Path
) -> None:
    built = nix.derivation('sh "late" "echo x > $out" { }')
    assert await serve.valid_paths([built.out]) == set()
    assert await serve.path_infos([built.out]) == {}
    nix.build(built.path)
    assert await serve.valid_paths([built.out]) == {built.out}

    other = nix.add(tmp_path, "other", "text")
    assert await serve.valid_paths([other], lock=False) == {other}
    nix.run("nix-store", "--delete", other)
    assert await serve.valid_paths([other]) == set()


async def test_a_locked_path_survives_garbage_collection_while_the_process_lives(
    serve: ServeProcess, nix: Nix, tmp_path: Path
) -> None:
    locked, loose = nix.add(tmp_path, "locked", "1"), nix.add(tmp_path, "loose", "2")
    await serve.valid_paths([locked], lock=True)
    await serve.valid_paths([loose], lock=False)
    nix.run("nix-store", "--gc")
    assert nix.is_valid(locked)
    assert not nix.is_valid(loose)
    await serve.close()
    nix.run("nix-store", "--gc")
    assert not nix.is_valid(locked)


# -- transfers ---------------------------------------------------------------------------------


async def test_a_path_goes_from_store_to_store_with_everything_known_about_it(
    settings: NixSettings, nix: Nix, own_store: NixStore, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "folder").mkdir(parents=True)
    (tmp_path / "tree" / "folder" / "file").write_bytes(bytes(range(256)) * 5000)
    (tmp_path / "tree" / "link").symlink_to("folder/file")
    (tmp_path / "tree" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "tree" / "run").chmod(0o755)
    source = nix.run("nix-store", "--add", str(tmp_path / "tree")).stdout.strip()
    built = nix.derivation('sh "built" "echo x > $out" { }')
    nix.build(built.path)
    serve = await ServeProcess.start(settings)
    infos = await serve.path_infos([source, built.out])
    nars = {path: await read(serve, info) for path, info in infos.items()}
    await serve.close()
    assert infos[source].ca is not None
    assert infos[built.out].deriver == built.path

    with NixStore(tmp_path / "second-store").entered():
        second = await ServeProcess.start(settings)
        for path, info in infos.items():
            await second.add(info, pieces(nars[path]))
        assert await second.path_infos(infos) == infos
        assert {path: await read(second, info) for path, info in infos.items()} == nars
        await second.close()


async def test_closure_follows_references(serve: ServeProcess, nix: Nix) -> None:
    nix_expression = """
        let a = sh "a" "echo a > $out" { }; b = sh "b" "echo ${a} > $out" { };
        in sh "c" "echo ${b} > $out" { }"""
    built = nix.derivation(nix_expression)
    nix.build(built.path)
    closure = await serve.closure([built.out])
    assert {path.rpartition("-")[2] for path in closure} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda nar: nar.replace(b"payload", b"PAYLOAD"), "hash mismatch"),
        (lambda nar: nar[:-8], "instead of"),
        (lambda nar: nar + bytes(8), "longer than"),
    ],
)
async def test_a_nar_that_is_not_what_was_announced_is_refused(
    settings: NixSettings,
    nix: Nix,
    own_store: NixStore,
    tmp_path: Path,
    damage: object,
    message: str,
) -> None:
    path = nix.add(tmp_path, "file", "payload")
    serve = await ServeProcess.start(settings)
    info = (await serve.path_infos([path]))[path]
    nar = await read(serve, info)
    await serve.close()
    assert callable(damage)
    with NixStore(tmp_path / "second-store").entered():
        second = await ServeProcess.start(settings)
        with pytest.raises(StoreFaultError, match=message):
            await second.add(info, pieces(damage(nar)))
        await second.close()
        assert not nix.is_valid(path)


async def test_an_error_of_the_sender_stays_what_it_is_and_leaves_no_path(
    settings: NixSettings, serve: ServeProcess, nix: Nix, tmp_path: Path
) -> None:
    path = nix.add(tmp_path, "file", "content")
    info = (await serve.path_infos([path]))[path]
    nix.run("nix-store", "--delete", path)

    async def broken() -> AsyncIterator[bytes]:
        yield b"\0" * 8
        raise ConnectionResetError("the cache went away")

    with pytest.raises(ConnectionResetError, match="the cache went away"):
        await serve.add(info, broken())
    assert not serve.alive
    assert not nix.is_valid(path)


async def test_a_drv_cannot_be_added_without_its_references(
    settings: NixSettings, nix: Nix, own_store: NixStore, tmp_path: Path
) -> None:
    built = nix.derivation('sh "b" "true" { dep = sh "a" "true" { }; }')
    serve = await ServeProcess.start(settings)
    info = (await serve.path_infos([built.path]))[built.path]
    nar = await read(serve, info)
    await serve.close()
    with NixStore(tmp_path / "second-store").entered():
        second = await ServeProcess.start(settings)
        with pytest.raises(StoreFaultError, match=r"a\.drv' is not valid"):
            await second.add(info, pieces(nar))
        await second.close()


async def test_a_path_whose_files_were_changed_is_not_sent(
    serve: ServeProcess, nix: Nix, tmp_path: Path
) -> None:
    path = nix.add(tmp_path, "file", "content")
    info = (await serve.path_infos([path]))[path]
    Path(path).chmod(0o644)
    Path(path).write_text("CONTENT")
    with pytest.raises(StoreFaultError, match="is damaged"):
        await read(serve, info)
    assert not serve.alive
