"""Find samples that are like no class, by score_samples.

    python outliers.py

The threshold is a quantile of the scores of samples that were not used for the fit.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from fxdask import FisherNetworkClassifier

SHARE_OF_FALSE_ALARMS = 0.05
KNOWN = (0, 1, 2, 3, 4, 5, 6)  # the classes that the model is shown; images of 7, 8 and 9 are the outliers


def main() -> None:
    """Fit to some classes, choose a threshold, and look at samples of known and unknown classes."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    is_known = np.isin(y, KNOWN)
    train, rest = np.flatnonzero(is_known)[:600], np.flatnonzero(is_known)[600:]
    held_out, test = rest[:300], np.concatenate([rest[300:], np.flatnonzero(~is_known)])

    clf = FisherNetworkClassifier(n_nodes=1_000).fit(X[train], y[train])
    threshold = np.quantile(clf.score_samples(X[held_out]), SHARE_OF_FALSE_ALARMS)
    scores = clf.score_samples(X[test])  # ln of the sum of all classes' scores: how likely the sample is at all
    is_outlier, is_strange = scores < threshold, ~is_known[test]

    print(f"{is_outlier[is_strange].mean():.0%} of {is_strange.sum()} images of unknown digits are found")
    print(f"{is_outlier[~is_strange].mean():.0%} of {(~is_strange).sum()} images of known digits are false alarms")
    print(f"area under the ROC curve: {roc_auc_score(is_strange, -scores):.2f}")
    strangest = test[np.argsort(scores)[:10]]
    print("the ten strangest images show", *y[strangest])


if __name__ == "__main__":
    main()
