"""Where data files are looked for, and how missing ones are had: from a real server on a loopback port."""

import gzip
import hashlib
import io
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import yaml
from support.refusals import ANY, refused
from support.scenarios import once, write
from typer.testing import CliRunner

from fedsim.cli.app import data_from
from fedsim.cli.main import app
from fedsim.common.errors import InputError
from fedsim.common.files import VARIABLE, data_folder
from fedsim.data import fetch
from fedsim.data.csv_table import Csv
from fedsim.data.fetch import SHOW, Download, obtain
from fedsim.deployment import certs
from fedsim.scenario.load import load

TABLE = (
    b"age,outcome\n" + b"\n".join(b"%d,%s" % (20 + k, [b"well", b"ill"][k % 2]) for k in range(40)) + b"\n"
)
SCHEMA = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "outcome": {"kind": "category", "categories": ["well", "ill"]},
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(name: str = "inner/clinic.csv", data: bytes = TABLE) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(name, data)
    return held.getvalue()


def tarred(*names: str) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(TABLE)
            archive.addfile(info, io.BytesIO(TABLE))
    return held.getvalue()


SERVED = {"/clinic.csv": TABLE, "/clinic.zip": zipped(), "/two.tar.gz": tarred("in/a", "in/b")}


class Handler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", unquote(self.path.removeprefix("/moved/")))
            self.end_headers()
            return
        body = SERVED.get(self.path.removeprefix("/cut"))
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write((body or b"")[: -9 if self.path.startswith("/cut") else None])

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.asked = []
        if context is not None:
            found.socket = context.wrap_socket(found.socket, server_side=True)
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def server() -> Iterator[Any]:
    with serving() as found:
        yield found


@pytest.fixture
def base(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "data"
    monkeypatch.setenv(VARIABLE, str(place))
    return place


def wanted(place: Path, url: str, **fields: Any) -> Download:
    return Download(place, (url,), **{"sha256": sha256(TABLE), **fields})


def fetched(place: Path, url: str, **fields: Any) -> None:
    obtain([wanted(place, url, **fields)])


def nothing_but(folder: Path, *names: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_a_missing_file_is_downloaded_once_and_its_bytes_are_told(
    server: Any, base: str, tmp_path: Path
) -> None:
    told: list[tuple[str, int | None, int]] = []

    @contextmanager
    def show(title: str, total: int | None) -> Iterator[Any]:
        yield lambda count: told.append((title, total, count))

    one = wanted(tmp_path / "new" / "clinic.csv", f"{base}/clinic.csv")
    token = SHOW.set(show)
    try:
        obtain([one])
        obtain([one])
    finally:
        SHOW.reset(token)
    assert one.path.read_bytes() == TABLE
    assert told == [(f"{base}/clinic.csv", len(TABLE), len(TABLE))]
    assert server.asked == ["/clinic.csv"]
    assert nothing_but(one.path.parent, "clinic.csv")


FTP = "ftp://127.0.0.1:9/clinic.csv"
INNER = {"member": "inner/clinic.csv"}
NOT_IT: list[tuple[str, dict[str, str], str]] = [
    ("/gone.csv", {}, "HTTP Error 404"),
    ("/cut/clinic.csv", {}, r"ended after \d+ of \d+ bytes"),
    ("/moved/file:%2F%2F%2Fetc%2Fhostname", {}, "file:///etc/hostname' is not allowed"),
    (f"/moved/{quote(FTP, safe=':')}", {}, f"redirection to {FTP} is not followed"),
    ("/clinic.zip", {}, "does not hold what was published"),
    ("/clinic.zip", {"member": "inner/gone.csv"}, "is not a whole archive with these files"),
    ("/clinic.zip", INNER | {"archive_sha256": "0" * 64}, "is not the archive that was published"),
    ("/clinic.zip", INNER | {"sha256": "0" * 64}, "does not hold what was published"),
    *((path, {"member": "in/a"}, "or the archive archive beside it") for path in ("/", "/..", "")),
]


@pytest.mark.parametrize(("path", "fields", "said"), NOT_IT)
def test_what_is_not_the_file_leaves_nothing(
    base: str, tmp_path: Path, path: str, fields: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        fetched(tmp_path / "clinic.csv", base + path, **fields)
    of_archive = said.startswith("is not ")  # which is named itself
    assert str(tmp_path / "clinic.csv") in str(caught.value) or of_archive
    assert nothing_but(tmp_path)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/clinic.csv", "file:///etc/hostname", "ftp://x/y", "http://["]
)
def test_without_a_server_it_says_which_file_to_put_where(tmp_path: Path, url: str) -> None:
    place = tmp_path / "clinic.csv"
    with refused("scenario.data", ANY, "cannot be downloaded", "put the file there, or name another folder"):
        fetched(place, url)
    assert nothing_but(tmp_path)


def test_a_redirection_is_followed_but_never_from_https_to_http(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = "/moved/" + quote(f"{base}/clinic.csv", safe="")
    fetched(tmp_path / "followed" / "clinic.csv", base + moved)
    certs.make(tmp_path / "keys", [], ["127.0.0.1"])
    keys = tmp_path / "keys" / "server"
    monkeypatch.setenv("SSL_CERT_FILE", str(keys / "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    with serving(context) as secure:
        fetched(tmp_path / "secure" / "clinic.csv", f"https://127.0.0.1:{secure.server_port}/clinic.csv")
        with refused("scenario.data", ANY, "redirection to http://", "/clinic.csv is not followed"):
            fetched(tmp_path / "refused" / "clinic.csv", f"https://127.0.0.1:{secure.server_port}{moved}")
    assert secure.asked == ["/clinic.csv", moved]
    assert nothing_but(tmp_path / "refused")


def test_a_folder_that_cannot_be_made_is_said(base: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("scenario.data", ANY, "cannot be written", "; name another folder by --data-dir"):
        fetched(tmp_path / "file" / "clinic.csv", f"{base}/clinic.csv")


def test_the_next_place_is_asked_where_the_first_has_it_not(server: Any, base: str, tmp_path: Path) -> None:
    urls = (f"{base}/gone.csv", f"{base}/clinic.csv")
    obtain([Download(tmp_path / "clinic.csv", urls, sha256(TABLE))])
    assert server.asked == ["/gone.csv", "/clinic.csv"]


def test_members_of_an_archive_are_taken_from_one_download(server: Any, base: str, tmp_path: Path) -> None:
    fetched(tmp_path / "clinic.csv", f"{base}/clinic.zip", **INNER)
    two = [
        wanted(
            tmp_path / name,
            f"{base}/two.tar.gz",
            sha256=None,
            member=f"in/{name}",
            archive_sha256=sha256(SERVED["/two.tar.gz"]),
        )
        for name in "ab"
    ]
    obtain(two)
    assert {(tmp_path / name).read_bytes() for name in ("clinic.csv", "a", "b")} == {TABLE}
    assert server.asked == ["/clinic.zip", "/two.tar.gz"]
    assert nothing_but(tmp_path, "clinic.csv", "a", "b")


def test_an_archive_beside_the_place_is_used(server: Any, base: str, tmp_path: Path) -> None:
    (tmp_path / "clinic.zip").write_bytes(zipped())
    fetched(tmp_path / "clinic.csv", f"{base}/clinic.zip", **INNER)
    assert (tmp_path / "clinic.csv").read_bytes() == TABLE
    assert server.asked == []


@pytest.mark.parametrize(
    ("name", "body", "size"),
    [
        ("clinic.zip", zipped(), None),
        ("clinic.zip", zipped(), 9),
        ("two.tar.gz", tarred("inner/clinic.csv"), None),
    ],
)
def test_a_member_is_unpacked_no_further_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: bytes, size: int | None
) -> None:
    monkeypatch.setattr(fetch, "MOST", len(TABLE))
    (tmp_path / name).write_bytes(body)
    fields = {**INNER, "size": size}
    if size is None:
        fetched(tmp_path / "clinic.csv", f"http://x/{name}", **fields)
        (tmp_path / "clinic.csv").unlink()
        monkeypatch.setattr(fetch, "MOST", len(TABLE) - 1)
    limit = f"{size or len(TABLE) - 1:,} bytes, the most allowed"
    with pytest.raises(
        InputError, match=f"inner/clinic.csv in {name} unpacks to more than {limit}"
    ) as caught:
        fetched(tmp_path / "clinic.csv", f"http://x/{name}", **fields)
    assert str(tmp_path / "clinic.csv") in str(caught.value)
    assert nothing_but(tmp_path, name)


def test_no_more_is_downloaded_than_may_be(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST", len(TABLE) - 1)
    with pytest.raises(InputError, match=f"sends more than {len(TABLE) - 1:,} bytes"):
        fetched(tmp_path / "clinic.csv", f"{base}/clinic.csv")
    assert nothing_but(tmp_path)


def test_a_gzip_file_is_hashed_no_further_than_its_limit(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVED, "/zeros.gz", gzip.compress(bytes(5000)))
    fits, bomb = (
        wanted(tmp_path / name, f"{base}/zeros.gz", sha256=sha256(bytes(5000)))
        for name in ("fits.gz", "bomb.gz")
    )
    monkeypatch.setattr(fetch, "MOST", 5000)
    obtain([fits])
    monkeypatch.setattr(fetch, "MOST", 4999)
    with pytest.raises(InputError, match="unpacks to more than 4,999 bytes") as caught:
        obtain([bomb])
    assert str(tmp_path / "bomb.gz") in str(caught.value)
    assert nothing_but(tmp_path, "fits.gz")


def test_the_sum_is_of_the_member_and_of_what_is_compressed(base: str, tmp_path: Path) -> None:
    packed = gzip.compress(TABLE)
    (tmp_path / "clinic.csv.gz").write_bytes(packed)
    fetched(tmp_path / "clinic.csv.gz", "http://x/clinic.csv.gz", sha256=sha256(TABLE))
    with refused("scenario.data", ANY, "does not hold what was published"):
        fetched(tmp_path / "clinic.csv.gz", "http://x/clinic.csv.gz", sha256=sha256(packed))
    of_archive = {**INNER, "sha256": sha256(SERVED["/clinic.zip"])}
    with refused("scenario.data", ANY, "does not hold what was published"):
        fetched(tmp_path / "clinic.csv", f"{base}/clinic.zip", **of_archive)


def test_a_file_that_is_there_must_be_the_one_that_was_published(tmp_path: Path) -> None:
    (tmp_path / "clinic.csv").write_bytes(TABLE[:-3])
    with pytest.raises(
        InputError, match=f"SHA-256 of its content is {sha256(TABLE[:-3])}, not {sha256(TABLE)}"
    ):
        fetched(tmp_path / "clinic.csv", "http://127.0.0.1:9/")


def test_a_truncated_gzip_file_has_no_content(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\0\0")
    with refused("field", ANY, "a.gz", "is damaged, or cut short?"):
        fetch.content(tmp_path / "a.gz", "field")


def scenario(place: Path, data: dict[str, Any]) -> Path:
    place.mkdir(exist_ok=True)
    return write(place, once(data={"name": "csv", "target": "outcome", "schema": SCHEMA, **data}))


def path_of(file: Path) -> Path:
    data = load(file).data
    assert isinstance(data, Csv)
    assert isinstance(data.path, Path)
    return data.path


def test_a_file_is_looked_for_beside_the_scenario_and_then_in_the_folder(
    tmp_path: Path, folder: Path
) -> None:
    file = scenario(tmp_path / "here", {"path": "clinic.csv"})
    beside, shared = file.parent / "clinic.csv", folder / "clinic.csv"
    assert path_of(file) == beside  # nowhere: the error names its first place
    with refused("scenario.data.path", ANY, "no such file, nor one of that name in the data folder"):
        load(file).data.open()
    folder.mkdir()
    shared.write_bytes(TABLE)
    assert path_of(file) == shared
    beside.write_bytes(TABLE)
    assert path_of(file) == beside


def test_schema_files_are_found_there_too_but_no_attendance(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    (folder / "turnout.csv").write_text("round,silo\n")
    file = scenario(tmp_path, {"path": "clinic.csv", "schema": "schema.yaml"})
    file.write_text(file.read_text() + "participation: {name: trace, path: turnout.csv}\n")
    found = load(file)
    assert found.data.files["schema"] == folder / "schema.yaml"
    assert getattr(found.participation, "path", None) == tmp_path / "turnout.csv"


def test_a_command_downloads_a_table_into_its_data_folder(server: Any, base: str, tmp_path: Path) -> None:
    origin = {"url": f"{base}/clinic.zip", "sha256": sha256(TABLE), "member": "inner/clinic.csv"}
    file = scenario(tmp_path / "here", {"path": "clinic.csv", "origin": origin})
    place = tmp_path / "mine"
    place.mkdir()
    for _ in range(2):
        done = CliRunner().invoke(app, ["privacy", str(file), "--data-dir", str(place)])
        assert done.exit_code == 0, done.output
    assert nothing_but(place, "clinic.csv")
    assert nothing_but(file.parent, "scenario.yaml")
    assert server.asked == ["/clinic.zip"]
    (place / "clinic.csv").write_bytes(TABLE + b"30,ill\n")
    done = CliRunner().invoke(app, ["privacy", str(file), "--data-dir", str(place)])
    assert done.exit_code == 2
    assert "does not hold what was published" in done.output


def test_an_origin_needs_a_web_address_and_one_file(tmp_path: Path) -> None:
    origin = {"url": "ftp://x/y", "sha256": "0" * 64}
    with refused("scenario.data.origin.url", "ftp://x/y"):
        load(scenario(tmp_path, {"path": "a.csv", "origin": origin}))
    several = {"path": {"north": "a.csv"}, "origin": {**origin, "url": "http://x/y"}}
    with refused("scenario.data.origin", "http://x/y", "only of one file"):
        load(scenario(tmp_path, several)).data.downloads  # noqa: B018


def test_nothing_is_downloaded_outside_the_data_folder(server: Any, tmp_path: Path, folder: Path) -> None:
    """A scenario from elsewhere must not write outside the data folder."""
    origin = {"url": f"http://127.0.0.1:{server.server_port}/clinic.csv", "sha256": sha256(TABLE)}
    for name in ("../clinic.csv", str(tmp_path / "clinic.csv")):
        data = load(scenario(tmp_path / "here", {"path": name, "origin": origin})).data
        with refused("scenario.data.path", ANY, "downloaded only into the data folder"):
            obtain(data.downloads)
    (tmp_path / "clinic.csv").write_bytes(TABLE)
    obtain(data.downloads)  # what is there is checked wherever it is
    assert server.asked == []


def test_the_folder_of_a_command_is_its_own(tmp_path: Path, folder: Path) -> None:
    with data_from(tmp_path):
        assert data_folder() == tmp_path
    assert data_folder() == folder
    with (
        refused("--data-dir", ANY, "nowhere': is no folder"),
        data_from(tmp_path / "nowhere"),
    ):
        pass


def test_without_a_name_it_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "fedsim"
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / "Library" / "Caches" / "fedsim"
