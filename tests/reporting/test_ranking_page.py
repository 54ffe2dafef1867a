"""The page of a ranking: complete, self-contained, readable for any names and any number of classes."""

import numpy as np
import pytest
from web_pages import Parts

import fxdask
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.reporting.ranking_page import ranking_page


@pytest.fixture(scope="module")
def ranking():
    rng = np.random.default_rng(0)
    y = np.arange(420) % 7
    X = rng.standard_normal((420, 25))
    X[:, 3] += y
    X[:, 4] = y
    return fxdask.rank_features(X, np.array([f"<{k}>" for k in y]), ["extended_fisher", "pearson", "relief"])


def test_a_page_has_bars_agreement_and_densities(ranking, tmp_path):
    path = tmp_path / "r.html"
    ranking.to_html(path)
    parts = Parts(path.read_text())
    assert parts.tags.count("svg") == len(ranking.shown)
    assert parts.tags.count("h2") == 3 + 2
    assert len(parts.identities) == len(set(parts.identities))
    assert all(address.startswith("#") for address in parts.addresses)
    words = " ".join(parts.words)
    assert "<0>" in words
    assert "Benjamini and Yekutieli" in words
    assert "all samples" in words
    assert "The first 6 of 7 classes are shown" in words
    ranking.to_html(path)  # a report of its own is replaced


def test_a_ranking_of_one_feature_has_a_page(tmp_path):
    found = fxdask.rank_features([[0.0], [0.0], [1.0], [1.0]], [0, 0, 1, 1], ["fisher"])
    found.to_html(tmp_path / "r.html")
    assert "1 feature ranked by fisher" in (tmp_path / "r.html").read_text()


def test_equal_scores_have_no_bars_and_no_agreement():
    y, names = np.arange(120) % 2, ["pearson", "volume_of_overlap"]
    page = ranking_page(fxdask.rank_features(np.ones((120, 4)), y, names))
    assert page.count('--s:0"') == 8
    assert page.count('<td title="all scores by ') == 2
    X = np.random.default_rng(0).standard_normal((120, 4))
    X[:, 1:] = 1
    tied = fxdask.rank_features(X, y, names)
    assert "<b>1.00</b><br><small>2 of 2</small>" in ranking_page(tied)


def test_a_narrow_window_shows_whole_bars_and_captions(ranking):
    page = ranking_page(ranking)
    narrow = page[page.index("@media (max-width: 40rem)") :].partition("dl {")[0]
    assert ".bars tr td:last-child { width: 6rem; }" in narrow
    assert "caption span { display: inline-block; left: 0; max-width: calc(100vw - 3rem); position: sticky; }" in page
    assert "<caption><span>Correlation of the ranks" in page


def test_classes_that_are_not_listed_are_counted():
    X, y = np.random.default_rng(0).standard_normal((100, 2)), np.arange(100) % 25
    assert "19: 4 and 5 more" in ranking_page(fxdask.rank_features(X, y, ["pearson"]))


def test_other_files_are_not_replaced(ranking, tmp_path):
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(StoreExistsError, match="is not a report of fxdask"):
        ranking.to_html(tmp_path / "notes.html")
    with pytest.raises(InvalidInputError, match="must be the path of a file"):
        ranking.to_html(3)
