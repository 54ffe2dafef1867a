"""Slow, obvious reference implementations; this module imports nothing from fxdask."""

import math

import numpy as np

EPS32 = 2.0**-23


def median(values):
    ordered = sorted(float(v) for v in values)
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def interquartile_mean(values):
    ordered = sorted(float(v) for v in values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)


def mean(values):
    return math.fsum(float(v) for v in values) / len(values)


def mad(values):
    centre = np.float32(median(values))
    return median([abs(np.float32(np.float32(v) - centre)) for v in values]) / 0.6745


def quantile(values, share):
    ordered = sorted(float(v) for v in values)
    fractional_index = share * (len(ordered) - 1)
    low = math.floor(fractional_index)
    if fractional_index == low:
        return ordered[low]
    return ordered[low] + (fractional_index - low) * (ordered[low + 1] - ordered[low])


def iqr(values):
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 1.349


def std(values):
    centre = mean(values)
    return math.sqrt(math.fsum((float(v) - centre) ** 2 for v in values) / len(values))


LOCATION = {"interquartile_mean": interquartile_mean, "mean": mean, "median": median}
SPREAD = {"mad": mad, "iqr": iqr, "std": std}


def spread(values, kind, tolerance):
    """(sample,) values -> the requested spread, a fallback or zero, and the name of its estimator."""
    names = list(SPREAD)
    for name in names[names.index(kind) :]:
        sigma = SPREAD[name](values)
        if sigma > tolerance:
            return sigma, name
    return 0.0, "zero"


def node_tolerance(w, scale):
    """(feature,) weights, scale of a class -> spread at or below which the class is treated as constant."""
    return 8 * EPS32 * math.sqrt(math.fsum(float(v) ** 2 for v in w)) * scale


def typical_norm(samples):
    """(sample, feature) preprocessed samples of one class -> two to the power of the median exponent of their norms."""
    norms = [math.sqrt(math.fsum(float(v) ** 2 for v in row)) for row in samples]
    exponents = sorted(math.frexp(norm)[1] - 1 for norm in norms if norm > 0)
    return 2.0 ** exponents[(len(exponents) - 1) // 2] if exponents else 0.0


def origin(X):
    """(sample, feature) -> (feature,) the mean where it is within the quartiles, else the median."""
    found = []
    for column in np.asarray(X, dtype=np.float64).T:
        centre = math.fsum(column) / len(column)
        inside = quantile(column, 0.25) <= centre <= quantile(column, 0.75)
        found.append(centre if inside else quantile(column, 0.5))
    return np.array(found)


def fisher_and_threshold(mu_k, mu_j, sigma_k, sigma_j, p_k, p_j):
    variance = sigma_k**2 + sigma_j**2
    fisher = (mu_k - mu_j) ** 2 / variance
    threshold = 2 * math.log(math.sqrt(2 * sigma_k**2 / variance) * p_j / p_k)
    return fisher, threshold


def pair_divergence(mu_k, mu_j, sigma_k, sigma_j, p_k, p_j, tolerance):
    if sigma_k == 0 and sigma_j == 0:
        return math.inf if abs(mu_k - mu_j) > tolerance else -math.inf
    if sigma_k == 0:
        return math.inf
    fisher, threshold = fisher_and_threshold(mu_k, mu_j, sigma_k, sigma_j, p_k, p_j)
    return fisher - threshold


def pair_fisher(mu_k, mu_j, sigma_k, sigma_j, tolerance):
    if sigma_k == 0 and sigma_j == 0:
        return math.inf if abs(mu_k - mu_j) > tolerance else -math.inf
    return (mu_k - mu_j) ** 2 / (sigma_k**2 + sigma_j**2)


def divergences(location, spreads, priors, tolerance, criterion="extended_fisher"):
    """(class, node) location and spread -> (class, node) scores, by loops."""
    n_classes, n_nodes = location.shape
    result = np.empty((n_classes, n_nodes))
    for k in range(n_classes):
        for i in range(n_nodes):
            scores = []
            for j in range(n_classes):
                if j == k:
                    continue
                four = (location[k, i], location[j, i], spreads[k, i], spreads[j, i])
                larger = max(tolerance[k, i], tolerance[j, i])
                if criterion == "fisher":
                    scores.append(pair_fisher(*four, larger))
                else:
                    scores.append(pair_divergence(*four, priors[k], priors[j], larger))
            result[k, i] = min(scores)
    return result


def top_nodes(scores, n_selected):
    """(node,) scores -> the best nodes; lower indices first among equals, no node with -inf."""
    ranked = sorted((-score, node) for node, score in enumerate(scores) if score > -math.inf)
    return [node for _, node in ranked[:n_selected]]


def log_density(point, values, bandwidth):
    exponents = [-((float(point) - float(v)) ** 2) / (2 * bandwidth**2) for v in values]
    top = max(exponents)
    total = math.fsum(math.exp(e - top) for e in exponents)
    return top + math.log(total) - math.log(math.sqrt(2 * math.pi) * bandwidth * len(values))


def log_scores(points, values, codes, selected, bandwidth, spreads, priors, combine):
    """(node, point) and (node, sample) values, selected nodes by class, (class, node) widths -> (point, class) ln y."""
    n_classes = len(priors)
    union = sorted({node for nodes in selected for node in nodes})
    result = np.empty((points.shape[1], n_classes))
    for t in range(points.shape[1]):
        for k in range(n_classes):
            nodes = union if combine == "log" else selected[k]
            logs = []
            for i in nodes:
                value = log_density(points[i, t], values[i][codes == k], bandwidth[k][i])
                if combine == "scaled":
                    value += math.log(spreads[k][i])
                logs.append(value)
            if combine == "log":
                joined = math.fsum(logs)
            else:
                top = max(logs)
                joined = top + math.log(math.fsum(math.exp(v - top) for v in logs))
            result[t, k] = joined + math.log(priors[k])
    return result


def silverman(values, sigma):
    return (4 / (3 * len(values))) ** 0.2 * sigma


def normalize(X, how):
    """(sample, feature) -> (sample, feature) float64, normalised by the statistics of these samples themselves."""
    X = np.asarray(X, dtype=np.float64)
    if how == "sample":
        X = X - X.mean(axis=1, keepdims=True)
        return X / X.std(axis=1, keepdims=True)
    if how == "feature":
        return (X - X.mean(axis=0)) / X.std(axis=0)
    return X


class Network:
    """The whole method in float64, with loops: the weights are given, everything else is computed from X and y."""

    def __init__(self, W, X, y, *, n_selected, priors, how=None):
        X = normalize(X, how)
        X = X - X.mean(axis=0)
        self.z = np.asarray(W, dtype=np.float64) @ X.T
        self.classes = np.unique(y)
        self.codes = np.searchsorted(self.classes, y)
        own = [self.z[:, self.codes == k] for k in range(len(self.classes))]
        self.location = np.array([[interquartile_mean(row) for row in z] for z in own])
        self.spread = np.array([[_mad64(row) for row in z] for z in own])
        no_tolerance = np.zeros_like(self.spread)
        self.divergences = divergences(self.location, self.spread, priors, no_tolerance)
        self.selected = [top_nodes(row, n_selected) for row in self.divergences]


def _mad64(values):
    centre = median(values)
    return median([abs(float(v) - centre) for v in values]) / 0.6745


def pair_correct(train, test, weights, draws, n_selected):
    """Training and test images of two classes -> number of test images that each criterion's network labels correctly.

    Everything follows its definition, in float64: images have mean 0 and deviation 1, and priors are
    equal. With (node,) draws, the second class is shifted at every node so that the interquartile
    means differ by the draw.
    """
    trained, tested = (
        [weights.astype(float) @ normalize(images, "sample").T for images in pair] for pair in (train, test)
    )
    location = np.array([[interquartile_mean(row) for row in values] for values in trained])
    if draws is not None:
        shift = (draws - (location[1] - location[0]))[:, None]
        trained[1], tested[1] = trained[1] + shift, tested[1] + shift
        location = np.array([[interquartile_mean(row) for row in values] for values in trained])
    spreads = np.array([[_mad64(row) for row in values] for values in trained])
    correct = {}
    for criterion in ("extended_fisher", "fisher"):
        scores = divergences(location, spreads, [0.5, 0.5], np.zeros_like(spreads), criterion)
        chosen = [top_nodes(row, n_selected) for row in scores]
        correct[criterion] = 0
        for k in (0, 1):
            for point in tested[k].T:
                y = []
                for j in (0, 1):
                    widths = [silverman(trained[j][node], spreads[j][node]) for node in chosen[j]]
                    terms = [
                        log_density(point[node], trained[j][node], width)
                        for node, width in zip(chosen[j], widths, strict=True)
                    ]
                    y.append(np.logaddexp.reduce(terms))
                correct[criterion] += y[k] > y[1 - k]
    return correct


def evaluation(log_scores, truth, classes, n_bins=20):
    """(sample, class) ln y, true labels, classes -> accuracy, confusion counts, log loss, reliability bins, ln sum y.

    A label that is not a class is never right, and has no log loss. The log loss is NaN if no label is a class.
    """
    classes, found = list(classes), []
    for row, label in zip(log_scores, truth, strict=True):
        top = max(row)
        total = top + math.log(math.fsum(math.exp(value - top) for value in row))
        predicted = max(range(len(row)), key=lambda k: row[k])  # the first of equals
        confidence = math.exp(row[predicted] - total)
        loss = total - row[classes.index(label)] if label in classes else None
        found.append((label, classes[predicted], confidence, loss, total))
    confusion, bins, losses = {}, [[] for _ in range(n_bins)], []
    for label, predicted, confidence, loss, _ in found:
        confusion[label, predicted] = confusion.get((label, predicted), 0) + 1
        bins[min(n_bins - 1, math.floor(confidence * n_bins))].append((confidence, label == predicted))
        losses += [] if loss is None else [loss]
    gaps = [abs(sum(right for _, right in members) - math.fsum(sure for sure, _ in members)) for members in bins]
    return {
        "accuracy": sum(label == predicted for label, predicted, *_ in found) / len(found),
        "confusion": confusion,
        "log_loss": math.fsum(losses) / len(losses) if losses else math.nan,
        "calibration_error": math.fsum(gaps) / len(found),
        "bins": bins,
        "score_samples": [total for *_, total in found],
    }
