"""A scikit-learn pipeline: select features, classify, calibrate the probabilities, and search the number of features.

    python pipeline.py

The classifier has no store here, because searches fit many copies of it.
"""

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fxdask import FilterSelector, FisherNetworkClassifier

N_SAMPLES, N_FEATURES, N_WIDE = 1_500, 200, 10


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Two classes with the same mean; 10 of 200 features vary more in the second class."""
    rng = np.random.default_rng(0)
    y = np.arange(N_SAMPLES) % 2
    X = rng.standard_normal((N_SAMPLES, N_FEATURES))
    X[y == 1, :N_WIDE] *= 1.8
    return X, y


def main() -> None:
    """Search, calibrate, and compare the probabilities before and after."""
    X_train, X_test, y_train, y_test = train_test_split(*make_data(), random_state=0)
    pipeline = make_pipeline(
        StandardScaler(), FilterSelector("extended_fisher"), FisherNetworkClassifier(500, n_selected=4)
    )
    search = GridSearchCV(pipeline, {"filterselector__k": [5, 10, 100]}, cv=3).fit(X_train, y_train)
    best = search.best_estimator_
    chosen = best[:-1].get_feature_names_out()
    print(f"k = {search.best_params_['filterselector__k']}; {len(set(chosen) & wide_names())} of {N_WIDE} are found")

    calibrated = CalibratedClassifierCV(best, method="sigmoid", cv=3).fit(X_train, y_train)
    for name, model in (("as fitted", best), ("calibrated", calibrated)):
        probabilities = model.predict_proba(X_test)
        accuracy = accuracy_score(y_test, model.classes_[probabilities.argmax(axis=1)])
        print(f"{name}: accuracy {accuracy:.1%}, log-loss {log_loss(y_test, probabilities):.3f}")


def wide_names() -> set[str]:
    """The names that scikit-learn gives to the features with unequal variances."""
    return {f"x{i}" for i in range(N_WIDE)}


if __name__ == "__main__":
    main()
