"""Tables as they come: markers, delimiters, encodings, one file or several."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from support.refusals import ANY, refused

from fedsim.common.errors import InputError
from fedsim.data.by_label import DirichletPartition, NaturalIdPartition
from fedsim.data.federation import load, outline
from fedsim.data.partition import IidPartition, SortedPartition
from fedsim.data.schema import MARKERS, NumberColumn, Reading

HEAD = "age,sex,hospital,chol,outcome\n"
PLAIN = HEAD + "30,male,a,200,ill\n40,female,a,300,well\n50,male,b,250,ill\n60,female,b,150,well\n"


def every_record(data) -> list[list[float]]:
    """Prepared features and targets of all records, sorted."""
    silo = load(data, IidPartition(num_partitions=1), 0, 0).silos[0]
    features = np.concatenate([silo.train.features, silo.test.features])
    targets = np.concatenate([silo.train.target, silo.test.target])
    return sorted([*row, t] for row, t in zip(features.tolist(), targets.tolist(), strict=True))


@pytest.mark.parametrize("marker", [*MARKERS, *(each.lower() for each in MARKERS), "", " NA "])
def test_a_marker_is_a_missing_number(make_csv, marker: str) -> None:
    marked = make_csv(HEAD + f"30,male,a,{marker},ill\n40,female,a,300,well\n")
    assert marked.open().design(np.arange(2)).features[:, 2].tolist() == [200, 300]


def test_given_markers_replace_the_list_in_csv_and_parquet_alike(make_csv, tmp_path) -> None:
    rows = HEAD + "30,male,a,-9,ill\n40,female,a,unknown,well\n50,male,a,250,ill\n"
    text = make_csv(rows, missing=[-9, "Unknown"])
    path = tmp_path / "t.parquet"
    frame = pd.read_csv(text.path, na_values=["unknown"])
    frame.loc[1, "chol"] = -9
    frame.to_parquet(path)
    for data in (text, make_csv(rows, path=path, missing=[-9])):
        assert data.open().design(np.arange(3)).features[:, 2].tolist() == [200, 200, 250]
    with refused("scenario.data.schema.chol", "NA", "row 1", "`missing`"):
        make_csv(HEAD + "30,male,a,NA,ill\n", missing=["?"]).open().design(np.arange(1))


@pytest.mark.parametrize("marker", [None, 1.5, True])
def test_a_marker_that_yaml_has_read_is_refused(marker) -> None:
    with pytest.raises(ValidationError, match="in quotes"):
        Reading(missing=[marker])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("given", [False, True])
def test_a_delimiter_is_found_or_given(make_csv, delimiter: str, given: bool) -> None:
    text = PLAIN.replace(",", delimiter).replace("ill", '"ill, or ; or |"')
    fields = {"delimiter": delimiter} if given else {}
    source = make_csv(text, **fields).open()
    assert source.columns == ("age", "sex", "hospital", "chol", "outcome")
    assert source.num_rows == 4


def test_a_text_with_the_more_frequent_commas_does_not_deceive(make_csv) -> None:
    text = PLAIN.replace(",", ";").replace("hospital", "hospital, if known, or clinic, or ward,,,,")
    assert "age" in make_csv(text, silo_column=None).open().columns


@pytest.mark.parametrize("delimiter", ["", ";;", "é", '"', "\n"])
def test_a_delimiter_is_one_character(delimiter: str) -> None:
    with pytest.raises(ValidationError, match="must be one character, such as ';', or the word tab"):
        Reading(delimiter=delimiter)


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("latin-1", "latin-1")]
)
def test_an_encoding_is_seen_in_the_byte_order_mark_or_given(make_csv, encoding: str, said) -> None:
    data = make_csv(silo_column="klinik", encoding=said)
    data.path.write_bytes(PLAIN.replace("hospital", "klinik").replace(",b,", ",Köln,").encode(encoding))
    assert list(outline(data, NaturalIdPartition(), 0).sizes) == ["Köln", "a"]


def test_undecodable_bytes_name_the_line_and_the_option(make_csv) -> None:
    data = make_csv()
    expected = r"path: '.*line 4 is not utf-8 text.*`encoding: latin-1`"
    data.path.write_bytes(PLAIN.replace(",b,", ",Köln,").encode("latin-1"))
    with pytest.raises(InputError, match=expected):
        outline(data, NaturalIdPartition(), 0)
    with pytest.raises(ValidationError, match="no such encoding; usual ones are"):
        Reading(encoding="klingon")


def test_a_decimal_comma_is_an_option_that_the_error_names(make_csv) -> None:
    text = HEAD.replace(",", ";") + "30,5;male;a;200;ill\n40;male;a;200;well\n"
    assert make_csv(text, decimal=",").open().design(np.arange(2)).features[:, 0].tolist() == [30.5, 40]
    with refused("scenario.data.schema.age", "30,5", "row 1: not a number;", "`decimal: ','`"):
        make_csv(text).open().design(np.arange(2))


def test_a_quote_that_nothing_closes_takes_no_record_away(make_csv) -> None:
    """How many records there are does not hang on what one of them holds."""
    text = PLAIN.replace(",ill", ',"ill', 1)
    data = make_csv(text)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if '"' in row)
    for look in (lambda source: source.num_rows, lambda source: source.design(np.arange(1))):
        with pytest.raises(
            InputError, match=f"line {line}: a cell goes on in the next line.*`multiline: true`"
        ):
            look(data.open())
    assert make_csv(text, multiline=True).open().num_rows < len(PLAIN.splitlines()) - 1


@pytest.mark.parametrize("cell", ["-9", "-9.0", "-9.00"])
def test_a_number_that_means_no_value_does_so_however_it_is_written(make_csv, cell: str) -> None:
    source = make_csv(HEAD + f"{cell},male,a,200,ill\n40,male,a,200,well\n", missing=["-9"]).open()
    with refused("scenario.data.schema.age", None, "row 1: no value"):
        source.design(np.arange(2))


@pytest.mark.parametrize("text", ["2024-01-31", "31.1.2024", "1/31/24 10:30", "10:30"])
def test_a_date_is_no_number_and_the_error_says_what_to_do(make_csv, text: str) -> None:
    with refused("scenario.data.schema.age", ANY, "row 1: a date or time"):
        make_csv(HEAD + f"{text},male,a,200,ill\n").open().design(np.arange(1))


def test_a_parquet_column_of_dates_says_the_same(make_csv, tmp_path) -> None:
    frame = pd.read_csv(make_csv(PLAIN).path)
    frame["age"] = pd.Timestamp("2024-01-31")
    frame.to_parquet(tmp_path / "t.parquet")
    with refused("scenario.data.schema.age", "timestamp[us]", "dates or times"):
        make_csv(path=tmp_path / "t.parquet").open().design(np.arange(1))


def test_every_column_of_one_name_is_named(make_csv) -> None:
    with refused("scenario.data.path", ANY, "columns of one name: 'age' (2 times), 'note' (3 times)"):
        make_csv("age,age ,note,note,note\n1,1,a,b,c\n").open()


def test_spaces_around_names_are_no_part_of_them(make_csv) -> None:
    assert every_record(make_csv(PLAIN.replace(",", ", "))) == every_record(make_csv(PLAIN))


def split_files(tmp_path, second: str = "b.csv"):
    header, *rows = PLAIN.splitlines(keepends=True)
    (tmp_path / "a.csv").write_text((header + "".join(rows[:2])).replace(",a,", ",").replace("hospital,", ""))
    b = pd.read_csv(make_path(tmp_path, header + "".join(rows[2:]))).drop(columns="hospital")
    b = b[["outcome", "chol", "sex", "age"]]
    (b.to_parquet if second.endswith("parquet") else b.to_csv)(tmp_path / second, index=False)
    return {"a": tmp_path / "a.csv", "b": tmp_path / second}


def make_path(tmp_path, text: str):
    path = tmp_path / "one.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("second", ["b.csv", "b.parquet"])
def test_a_file_for_each_silo_is_the_table_of_all(make_csv, tmp_path, second: str) -> None:
    """Whatever the order of the columns, and be one CSV and the other Parquet."""
    paths = split_files(tmp_path, second)
    several, one = make_csv(path=paths, silo_column=None), make_csv(PLAIN)
    assert several.open().silo_column == "silo"
    mine, theirs = load(several, NaturalIdPartition(), 0, 0), load(one, NaturalIdPartition(), 0, 0)
    assert mine.digest == theirs.digest
    assert [silo.name for silo in mine.silos] == ["a", "b"]
    assert several.files == {"path.a": paths["a"], "path.b": paths["b"]}


def test_the_odd_file_is_named(make_csv, tmp_path) -> None:
    paths = split_files(tmp_path)
    for change, message in [
        ({"b": tmp_path / "c.csv"}, "scenario.data.path.b: '.*c.csv': no such file"),
        ({"b": make_path(tmp_path, PLAIN)}, None),
        ({"b": make_path(tmp_path, "age,sex,chol\n1,male,2\n")}, "'outcome': one.csv has no such column"),
    ]:
        data = make_csv(path=paths | change, silo_column=None)
        if message is not None:
            with pytest.raises(InputError, match=message):
                data.open()
    taken = make_csv(path=paths | {"b": make_path(tmp_path, PLAIN)}, silo_column="hospital")
    with refused("scenario.data.path.b", ANY, "one.csv has a column 'hospital'", "by silo_column"):
        taken.open()


def test_a_row_is_named_by_its_file(make_csv, tmp_path) -> None:
    paths = split_files(tmp_path)
    paths["b"].write_text(paths["b"].read_text().replace("female", "femal"))
    with refused("scenario.data.schema.sex", "femal", "b.csv, row 2: not a declared category"):
        load(make_csv(path=paths, silo_column=None), NaturalIdPartition(), 0, 0)


HOMELESS = PLAIN.replace("60,female,b", "60,female,NA")


def test_a_record_without_a_silo_is_an_error_that_counts(make_csv, schema) -> None:
    schema["hospital"] = {"kind": "category", "categories": ["a", "b"], "fill": "a"}  # which is never used
    for data in (make_csv(HOMELESS), make_csv(HOMELESS, schema=schema)):
        with refused(
            "scenario.partition.partition_by", "hospital", "1 of 4 records", "row 4", "`without_silo: drop`"
        ):
            outline(data, NaturalIdPartition(), 0)


@pytest.mark.parametrize(
    ("without_silo", "sizes"),
    [("drop", {"a": 2, "b": 1}), ("b", {"a": 2, "b": 2}), ("nowhere", {"a": 2, "b": 1, "nowhere": 1})],
)
def test_a_record_without_a_silo_goes_where_the_scenario_says(make_csv, without_silo: str, sizes) -> None:
    partition = NaturalIdPartition(without_silo=without_silo)
    assert outline(make_csv(HOMELESS), partition, 0).sizes == dict.fromkeys(sizes, 1) | {
        name: outline(make_csv(PLAIN), NaturalIdPartition(), 0).sizes["a"]
        for name in sizes
        if sizes[name] == 2
    }
    assert outline(make_csv(PLAIN), partition, 0).sizes.keys() == {"a", "b"}


def test_no_partition_deals_by_a_filled_value(make_csv) -> None:
    text = PLAIN.replace("60,female,b,150", "60,female,b,NA").replace("60,female", "60,?")
    for partition, column in [  # of the first the outline needs no more than a count
        (SortedPartition(num_partitions=2, by="chol"), "chol"),
        (DirichletPartition(num_partitions=2, alpha=1, partition_by="sex", min_partition_size=1), "sex"),
    ]:
        with pytest.raises(InputError, match=f"'{column}': 1 of 4 records have no value there"):
            load(make_csv(text), partition, 0, 0)


@pytest.mark.parametrize(("scale", "fill"), [("linear", 50.5), ("log", 10)])
def test_the_middle_is_a_function_of_the_declared_range(scale: str, fill: float) -> None:
    column = NumberColumn(kind="number", lower=1, upper=100, scale=scale, fill="middle")
    assert column.fill == fill
    with pytest.raises(ValidationError, match="lower must be below upper"):
        NumberColumn(kind="number", lower=3, upper=1, scale=scale, fill="middle")


def test_parquet_nulls_are_missing_in_any_type(make_csv, tmp_path) -> None:
    nothing = pa.array([None, None])
    columns = {"age": [30, 40], "sex": ["male", "female"], "chol": nothing, "outcome": ["ill", "well"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = make_csv(path=tmp_path / "t.parquet", silo_column=None)
    assert data.open().design(np.arange(2)).features[:, 2].tolist() == [200, 200]
