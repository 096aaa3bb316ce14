"""A run's scenario.yaml names its files without absolute paths, says what was in them, and runs again."""

import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.refusals import ANY, refused
from support.used_models import clinic, clinic_tree, simulated

import fedsim
from fedsim.common.errors import InputError
from fedsim.report.run_directory import write
from fedsim.scenario.load import anchored, load, load_tree, relative


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, fedsim.Run]:
    """A folder with data/clinic.csv, data/schema.yaml, and runs/first, whose rounds a file lays down."""
    data, place = tmp_path / "data", tmp_path / "runs" / "first"
    data.mkdir()
    place.mkdir(parents=True)
    clinic(data)
    tree = clinic_tree(data)
    (data / "schema.yaml").write_text(yaml.safe_dump(tree["data"].pop("schema")))
    (data / "there.csv").write_text("round,silo\n0,north\n0,south\n1,south\n2,north\n")
    trace = {"name": "trace", "path": str(data / "there.csv")}
    own = tree["data"] | {"schema": str(data / "schema.yaml")}
    run = simulated(tree | {"data": own, "participation": trace})
    write(run.source, run.results, place, place)
    return tmp_path, run


def kept(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "runs" / "first" / "scenario.yaml").read_text())


def test_files_are_named_relative_to_the_run_with_their_digests(study) -> None:
    folder, _ = study
    scenario = kept(folder)
    assert scenario["data"]["path"] == "../../data/clinic.csv"
    assert scenario["data"]["schema"] == "../../data/schema.yaml"
    assert scenario["participation"]["path"] == "../../data/there.csv"
    files = {"data.path": "clinic.csv", "data.schema": "schema.yaml", "participation.path": "there.csv"}
    assert scenario["files"] == {
        field: sha256((folder / "data" / name).read_bytes()).hexdigest() for field, name in files.items()
    }
    for file in (folder / "runs" / "first").rglob("*"):
        assert str(folder).encode() not in file.read_bytes(), file.name


def test_only_scenario_yaml_has_digests_of_records(study) -> None:
    """A digest tells whoever knows all records but one whether a guess at that one is right."""
    folder, run = study
    digest = kept(folder)["files"]["data.path"]
    read = fedsim.load_run(folder / "runs" / "first")
    assert digest not in run.scenario + read.scenario
    with_it = [f.name for f in (folder / "runs" / "first").iterdir() if digest.encode() in f.read_bytes()]
    assert with_it == ["scenario.yaml"]


def test_it_runs_again_wherever_the_whole_folder_goes(study, tmp_path_factory) -> None:
    folder, run = study
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.move(folder, elsewhere)
    again = simulated(elsewhere / "runs" / "first" / "scenario.yaml")
    assert np.array_equal(again.model, run.model)
    assert again.source.files == run.source.files


def test_a_changed_file_is_refused_unless_it_is_meant(study) -> None:
    folder, run = study
    scenario, table = folder / "runs" / "first" / "scenario.yaml", folder / "data" / "clinic.csv"
    table.write_text(table.read_text().replace("p0,", "p99,"))
    said = "scenario.files.data.path: .*clinic.csv has other contents now; files=null runs it all the same"
    with pytest.raises(InputError, match=said):
        simulated(scenario)
    with refused("scenario.files.data.path", ANY, "has other contents"):
        fedsim.price(scenario)
    assert np.array_equal(simulated(scenario, {"files": None}).model, run.model)  # of no column that is used
    with refused("scenario.files.participation.path", ANY, "no file is named there now"):
        simulated(scenario, {"participation": "all", "files": {"participation.path": "0" * 64}})


def test_a_copy_names_the_same_files(study) -> None:
    folder, _ = study
    run = fedsim.load_run(folder / "runs" / "first")
    (folder / "runs" / "first" / "report.html").touch()
    run.save(folder / "copies" / "of" / "it")
    text = (folder / "copies" / "of" / "it" / "scenario.yaml").read_text()
    assert text.startswith("# Anyone who has this file")
    assert yaml.safe_load(text)["data"]["path"] == "../../../data/clinic.csv"
    original, copy = (load(folder / place / "scenario.yaml") for place in ("runs/first", "copies/of/it"))
    assert original == copy


def test_relative_undoes_anchored_also_for_what_a_sweep_varies(tmp_path: Path) -> None:
    tree = {
        "data": {"name": "csv", "path": "../a.csv", "schema": {"age": {"kind": "number"}}},
        "sweep": {"grid": {"data.path": ["b.csv", "x/c.csv"]}, "cells": [{"data": {"path": "d.csv"}}]},
    }
    assert relative(anchored(tree, tmp_path), tmp_path) == tree
    assert anchored(tree, tmp_path)["data"]["path"] == str(tmp_path.parent / "a.csv")


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "heart.csv").symlink_to(tmp_path / "blob")
    (tmp_path / "here").symlink_to(tmp_path)
    tree = {"data": {"path": str(tmp_path / "here" / "heart.csv")}}
    assert relative(tree, tmp_path / "here")["data"]["path"] == "heart.csv"


def test_a_scenario_without_files_has_no_digests(small_run: Path) -> None:
    assert "files" not in load_tree(small_run / "scenario.yaml")
    assert not re.search(r"[\w ]: /", (small_run / "scenario.yaml").read_text())
