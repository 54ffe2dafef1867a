"""The page of a model: complete, self-contained, readable for any names and any number of classes."""

import re
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from small import fit, one_sentence
from web_pages import CHROMIUM, Parts, assert_contrast, measured_widths, screenshot

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError, StoreExistsError, StoreWriteError, ZeroSpreadWarning
from fxdask.reporting import model_facts, model_page
from fxdask.reporting.figures import SERIES
from fxdask.reporting.model_facts import facts_of
from fxdask.reporting.model_figures import correlation_picture, score_range, spaced_ticks
from fxdask.reporting.model_page import page
from fxdask.workflows.evaluate import checked_test_data, evaluate_model


@pytest.fixture(scope="module")
def fitted(three_blobs):
    X, y = three_blobs
    return FisherNetworkClassifier(200, 4, combine="sum", normalize="feature").fit(X[::2], y[::2])


@pytest.fixture(scope="module")
def facts(fitted):
    return facts_of(fitted._fitted_model())


@pytest.fixture
def one_panel(monkeypatch):
    """Figures of one class instead of three, for tests that are not about figures."""
    monkeypatch.setattr(model_facts, "MOST_PANELS", 1)


def evaluated(clf, X, y):
    model = clf._fitted_model()
    return evaluate_model(model, checked_test_data(model, X, y))


def blobs(n_classes, n_samples, seed=0, names=None):
    centres = 2 * np.random.default_rng(1).standard_normal((n_classes, 6))
    codes = np.arange(n_samples) % n_classes
    X = centres[codes] + np.random.default_rng(seed).standard_normal((n_samples, 6))
    return X, codes if names is None else np.array(names)[codes]


def test_the_page_without_test_data_is_complete(fitted, tmp_path):
    assert fitted.report(tmp_path / "model.html") is None
    parts = Parts((tmp_path / "model.html").read_text(encoding="utf-8"))
    parts.assert_self_contained()
    assert parts.tags.count("svg") == 6
    assert parts.tags.count("h1") == 1
    for words in (
        "A network of random projections for 3 classes",
        "Fitted on 150 samples of 5 features. 200 random projections",
        "ash 50 33.33",
        "each feature is scaled to mean 0 and standard deviation 1",
        "projection, centred",
        "divergence D",
        "Histograms of D over all 200 nodes, by the criterion 'extended_fisher'",
        "n_selected 4",
        "bandwidth silverman",
    ):
        assert words in parts.text
    assert "important" in parts.text
    for words in ("test data", "Overlap", "Correlations"):
        assert words not in parts.text
    for k, row in enumerate(fitted.selected_nodes_):
        for node in row:
            assert f"{node} {fitted.divergences_[k, node]:.2f}" in parts.text
        assert f"node {row[0]}, D = {fitted.divergences_[k, row[0]]:.4g}" in parts.text


def test_the_page_with_test_data_has_its_numbers(fitted, three_blobs, tmp_path):
    X, y = three_blobs
    found = fitted.report(tmp_path / "model.html", X[1::2], y[1::2])
    parts = Parts((tmp_path / "model.html").read_text(encoding="utf-8"))
    parts.assert_self_contained()
    assert parts.tags.count("svg") == 8
    accuracy = fitted.score(X[1::2], y[1::2])
    assert found.accuracy == accuracy
    for words in (
        f"Of 150 test samples, it labels {100 * accuracy:.2f}% correctly.",
        f"{100 * accuracy:.2f}% ({round(150 * accuracy)} of 150 samples)",
        f"{found.log_loss:#.4g} (natural logarithm)",
        f"{100 * found.calibration_error:.2f} points",
        "share of correct labels",
        "probability of the predicted class",
        "ln of the sum of all classes' scores",
        "labelled wrongly",
    ):
        assert words in parts.text
    predicted = fitted.predict(X[1::2])
    for label in ("ash", "birch", "cedar"):
        tested, labelled = y[1::2] == label, predicted == label
        recall, precision = (100 * np.mean((tested & labelled)[of]) for of in (tested, labelled))
        assert f"{label} 50 33.33 50 {recall:.2f} {precision:.2f}" in parts.text
    for i, row in enumerate(found.confusion.tolist()):
        shown = " ".join(str(count) for count in row if count)
        assert f"{found.labels[i]} {shown}" in parts.text.partition("Confusion matrix")[2]


@pytest.mark.usefixtures("one_panel")
def test_test_data_in_any_form_gives_the_same_page(fitted, three_blobs, tmp_path):
    X, y = three_blobs
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(70, 3))
    np.save(tmp_path / "X.npy", X)
    fitted.report(tmp_path / "expected.html", X, y)
    for form in (
        zarr.open_array(tmp_path / "X.zarr", mode="r"),
        tmp_path / "X.zarr",
        str(tmp_path / "X.npy"),
        da.from_array(X, chunks=(44, 5)),
    ):
        fxdask.report(fitted, tmp_path / "model.html", form, y)
        assert (tmp_path / "model.html").read_bytes() == (tmp_path / "expected.html").read_bytes()


def test_a_stored_model_gives_the_same_page_but_for_its_path(three_blobs, tmp_path):
    X, y = three_blobs
    clf = FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(X, y)
    clf.report(tmp_path / "here.html")
    fxdask.report(str(tmp_path / "model.zarr"), tmp_path / "there.html")
    here, there = ((tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("here", "there"))
    assert here == there
    assert str(tmp_path / "model.zarr") in Parts(here).text


# Sections that only some models have


def test_sections_of_a_joint_model_appear(facts):
    correlations = np.stack([np.full((7, 7), r) + (1 - r) * np.eye(7) for r in (0.5, -0.1, 0.0)])
    found = replace(
        facts,
        selected=facts.selected[:1],
        overlaps=np.array([0.62, 0.31, 0.155, 0.0712]),
        correlations=correlations,
        shrinkage=np.array([0.013, 0.2, 1.0]),
        importances=np.array([0.5, 0.25, 0.2, 0.0499, 0.0001]),
        feature_names=["petal <width>", "b", "c", "d", "e"],
    )
    drawn = page(found)
    parts = Parts(drawn)
    parts.assert_self_contained()
    assert parts.tags.count("img") == 3
    assert parts.tags.count("svg") == 7
    for words in (
        "All classes share these nodes",
        "overlap Q after this step",
        f"1 {facts.selected[0, 0]}",
        "0.0712",
        "0.62 with one node, 0.0712 with all 4",
        "number of nodes",
        "overlap of the classes, Q",
        "Correlations of the 7 selected nodes within each class",
        "ash : root mean square 0.50, shrunk by 0.013",
        "birch : root mean square 0.10, shrunk by 0.2",
        "petal <width> 50.00",
        "e 0.01",
    ):
        assert words in parts.text, words
    assert re.findall(r'<div style="--s:([\d.]+)">', drawn) == ["1.000", "0.500", "0.400", "0.100", "0.000"]


def test_importances_have_numbers_where_there_are_no_names(facts):
    importances = np.zeros(5)
    importances[3] = 1
    text = Parts(page(replace(facts, importances=importances))).text
    assert "feature 3 100.00" in text


def test_correlations_are_opaque_where_they_are_strong(tmp_path):
    import base64

    from matplotlib.image import imread

    file = tmp_path / "picture.png"
    data = correlation_picture(np.array([[1.0, -0.5], [-0.5, 0.0]]))
    file.write_bytes(base64.b64decode(data.partition(",")[2]))
    pixels = imread(file)
    assert pixels.shape == (2, 2, 4)
    np.testing.assert_allclose(pixels[:, :, 3], [[1, 0.5], [0.5, 0]], atol=0.01)
    assert pixels[0, 0, 2] > pixels[0, 0, 0], "positive ones are blue"
    assert pixels[0, 1, 0] > pixels[0, 1, 2], "negative ones are orange"


# Names and numbers of classes


def test_names_are_escaped_and_shortened(tmp_path):
    names = ['<script>"x"&\n$a_1$', "_hidden", "日本語 " + "very long " * 9]
    X, y = blobs(3, 240, names=names)
    clf = FisherNetworkClassifier(60, 2).fit(X, y)
    clf.report(tmp_path / "model.html", X, y)
    parts = Parts((tmp_path / "model.html").read_text(encoding="utf-8"))
    parts.assert_self_contained()
    for shown in ('<script>"x"& $a_1$', "_hidden", "日本語 very long very long…"):
        assert shown in parts.text
    assert "very long very long very" not in parts.text


@pytest.mark.usefixtures("one_panel")
def test_a_class_that_the_model_does_not_know_is_named(fitted, three_blobs):
    X, y = three_blobs
    evaluation = evaluated(fitted, X, np.where(np.arange(300) < 4, "oak", y))
    text = Parts(page(facts_of(fitted._fitted_model()), evaluation)).text
    assert "The model does not know the labels of 4 of the test samples." in text
    assert "oak (unknown)" in text
    without = evaluated(fitted, X[:2], ["oak", "oak"])
    assert "log loss - expected" in Parts(page(facts_of(fitted._fitted_model()), without)).text


@pytest.mark.usefixtures("one_panel")
def test_26_classes_have_a_matrix_and_27_a_table():
    for n_classes in (26, 27):
        X, y = blobs(n_classes, 540)
        clf = FisherNetworkClassifier(40, 2, combine="sum").fit(X, y)
        found = evaluated(clf, X, y)
        parts = Parts(page(facts_of(clf._fitted_model()), found))
        parts.assert_self_contained()
        assert ("Confusion matrix" in parts.text) == (n_classes == 26)
        assert ("share of the true class" in parts.text) == (n_classes == 27)
    errors = found.confusion - np.diag(np.diag(found.confusion))
    i, k = np.unravel_index(errors.argmax(), errors.shape)
    share = 100 * errors[i, k] / found.confusion[i].sum()
    assert f"{i} {k} {errors[i, k]} {share:.2f}" in parts.text


@pytest.mark.usefixtures("one_panel")
def test_perfect_labels_have_no_confusions():
    X, y = np.repeat(np.arange(28.0), 4)[:, None] * 100, np.repeat(np.arange(28), 4)
    X = X + np.tile([0.0, 0.1, 0.2, 0.3], 28)[:, None]
    clf = FisherNetworkClassifier(10, 2, combine="sum").fit(X, y)
    found = evaluated(clf, X, y)
    assert found.accuracy == 1
    assert "No sample was labelled wrongly." in Parts(page(facts_of(clf._fitted_model()), found)).text


def test_a_constant_class_and_infinite_divergences_are_shown():
    X = np.random.default_rng(0).standard_normal((90, 3))
    y = np.arange(90) % 3
    X[y == 1] = 2.0
    with pytest.warns(ZeroSpreadWarning):
        clf = FisherNetworkClassifier(30, 3).fit(X, y)
    parts = Parts(page(facts_of(clf._fitted_model())))
    parts.assert_self_contained()
    assert "30 infinite values are left out" in parts.text
    assert "D = ∞; its peak of" in parts.text
    assert "nan" not in parts.text.lower()


def test_long_tables_say_what_they_leave_out(facts, monkeypatch):
    monkeypatch.setattr(model_page, "MOST_ROWS", 2)
    monkeypatch.setattr(model_page, "MOST_RANKS", 3)
    assert "The table has the first 2 of 3 classes and the first 3 of 4 nodes of a class." in Parts(page(facts)).text


def test_many_columns_have_turned_heads_and_short_counts(facts):
    assert model_page._compact(9_999, 20) == "9999"
    assert model_page._compact(12_345, 20) == "12k"
    assert model_page._compact(1_234_567, 20) == "1.2M"
    assert model_page._compact(12_345, 10) == "12,345"
    assert 'class="matrix turned"' not in page(facts)
    wide = replace(
        facts,
        selected=np.tile(facts.selected, 4),
        divergences_of_selected=np.tile(facts.divergences_of_selected, 4),
    )
    assert 'class="matrix turned"' in page(wide)


def test_every_curve_has_its_own_colour():
    assert len({colour for colour, _, _ in SERIES}) == len(SERIES) == 6
    assert len({name for _, name, _ in SERIES}) == 6


# Axes


@pytest.mark.parametrize(("low", "high", "width"), [(-1.0, 1e6, 1.0), (-1e5, 1e5, 0.3), (2.0, 5e3, 10.0)])
def test_ticks_lie_within_the_axis_and_apart(low, high, width):
    ticks = spaced_ticks(low, high, width)
    assert len(ticks) >= 2
    assert all(low <= tick <= high for tick in ticks)
    places = np.arcsinh(np.array([low, *ticks, high]) / width)
    assert np.diff(places[1:-1]).min() >= (places[-1] - places[0]) / 6 - 1e-9


def test_far_outliers_are_left_of_the_figure():
    values, counts = np.array([-1e9, -4.0, -3.0, -2.0, 0.0]), np.array([1, 100, 100, 100, 10])
    assert score_range(values, counts) == (-9.0, 0.0)
    assert score_range(values[1:], counts[1:]) == (-4.0, 0.0)
    assert score_range(np.array([2.0]), np.array([5])) == (1.5, 2.5)


# The file


@pytest.mark.usefixtures("one_panel")
def test_only_an_earlier_report_is_replaced(fitted, tmp_path):
    file = tmp_path / "model.html"
    fitted.report(file)
    first = file.read_bytes()
    fitted.report(file)
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["model.html"], "no draft is left"
    file.write_text("<p>mine</p>")
    with pytest.raises(StoreExistsError, match=r"model.html exists and is not a report of fxdask; choose another path"):
        fitted.report(file)
    assert file.read_text() == "<p>mine</p>"


@pytest.mark.usefixtures("one_panel")
def test_readers_of_the_old_page_are_not_disturbed(fitted, tmp_path):
    """The new page is another file of the same name, so whoever has the old one open reads all of it."""
    file = tmp_path / "model.html"
    fitted.report(file)
    with file.open("rb") as reader:
        before = file.read_bytes()
        start = reader.read(100)
        fit().report(file)
        assert start + reader.read() == before
    assert "2 classes" in Parts(file.read_text(encoding="utf-8")).text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (".", r"no report can be written to .*: it is a folder; choose another path"),
        ("nowhere/model.html", "its folder does not exist; choose another path"),
        (7, "path must be the path of a file, not 7"),
    ],
)
def test_paths_that_cannot_be_written_are_refused_before_the_scoring(fitted, tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_page, "evaluate_model", None)
    with pytest.raises(InvalidInputError, match=message) as error:
        fitted.report(path, np.zeros((1, 5)), ["ash"])
    one_sentence(error)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can create files")
def test_a_failed_write_is_one_sentence(fitted):
    with pytest.raises((StoreWriteError, InvalidInputError), match="no report can be written to /proc/m.html") as error:
        fitted.report("/proc/m.html")
    one_sentence(error)


@pytest.mark.usefixtures("one_panel")
def test_a_full_disk_is_one_sentence_and_keeps_the_old_page(fitted, small_disk):
    file = small_disk / "model.html"
    fitted.report(file)
    before = file.read_bytes()
    (small_disk / "filler").write_bytes(bytes(4 * 2**20 - len(before) - 2**14))
    with pytest.raises(StoreWriteError, match="No space left on device; choose another path") as error:
        fitted.report(file)
    one_sentence(error)
    assert file.read_bytes() == before
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "model.html"]


def test_an_estimator_that_is_not_fitted_has_no_report(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        FisherNetworkClassifier().report(tmp_path / "model.html")


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser")
@pytest.mark.parametrize("is_dark", [True, False])
def test_a_browser_renders_the_page(fitted, three_blobs, tmp_path, is_dark):
    fitted.report(tmp_path / "model.html", *three_blobs)
    assert_contrast(screenshot(tmp_path / "model.html", is_dark=is_dark), is_dark=is_dark)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser")
def test_26_classes_fit_into_a_window(tmp_path, monkeypatch):
    """At 1,200 pixels nothing scrolls; in a narrow window boxes scroll, but never the page."""
    monkeypatch.setattr(model_facts, "MOST_PANELS", 5)  # two rows of panels
    names = [f"class {chr(65 + i)}" for i in range(26)]
    X, y = blobs(26, 1_300, names=names)
    clf = FisherNetworkClassifier(100, 10, combine="sum").fit(X, y)
    found = evaluated(clf, X, y)
    # Counts of four digits need the most room.
    many = replace(found, counts=replace(found.counts, confusion=40 * found.confusion))
    (tmp_path / "model.html").write_text(page(facts_of(clf._fitted_model()), many), encoding="utf-8")
    wide, narrow = measured_widths(tmp_path / "model.html", 1200, 500)
    assert wide["page"] <= wide["window"]
    assert wide["scrolling"] == 0
    assert narrow["page"] <= narrow["window"]
    assert narrow["scrolling"] > 0
