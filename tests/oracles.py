"""Slow, obvious reference implementations; this module imports nothing from fxdask."""

import math
from statistics import NormalDist

import numpy as np
from scipy.linalg import hadamard

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


def shrunk_spreads(spreads, counts):
    """Spreads of all classes at one node -> those of classes of few samples moved towards the others'."""
    mean_square = sum(sigma**2 for sigma in spreads) / len(spreads)
    moved = []
    for sigma, count in zip(spreads, counts, strict=True):
        share = 1 / math.sqrt(2 ** (count - 1))
        moved.append(math.sqrt((1 - share) * sigma**2 + share * mean_square) if sigma > 0 else 0.0)
    return moved


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


def normal_quantile(p):
    return NormalDist().inv_cdf(p)


def rank_scores(values):
    """(sample,) values of one class -> (sample,) normal scores of their ranks, in multiples of 1/1024."""
    values = [float(v) for v in values]
    scores = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        mean_rank = below + (equal + 1) / 2
        scores.append(round(1024 * normal_quantile((mean_rank - 0.5) / len(values))) / 1024)
    return scores


def score_correlation(a, b):
    """Correlation of two lists of scores; 0 if one of them is constant."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    aa = math.fsum((x - mean_a) ** 2 for x in a)
    bb = math.fsum((x - mean_b) ** 2 for x in b)
    ab = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return ab / math.sqrt(aa * bb) if aa > 0 and bb > 0 else 0.0


def shrunk_correlations(values):
    """(node, sample) values of one class -> (node, node) shrunk correlations, and the shrinkage."""
    scores = [rank_scores(row) for row in values]
    n, v = len(scores), len(scores[0])
    raw = np.array([[1.0 if i == j else score_correlation(scores[i], scores[j]) for j in range(n)] for i in range(n)])
    off_diagonal = [float(raw[i, j]) for i in range(n) for j in range(n) if i != j]
    squares = math.fsum(r * r for r in off_diagonal)
    if v == 2 or n == 1 or squares == 0:
        shrinkage = 1.0
    else:
        shrinkage = math.fsum(1 - r * r for r in off_diagonal) / ((v - 2) * squares)
        shrinkage = min(1.0, max(0.001, shrinkage))
    return (1 - shrinkage) * raw + shrinkage * np.eye(n), shrinkage


def joint_divergence(mu_k, mu_j, cov_k, cov_j, p_k, p_j):
    """Means and covariances of two classes at a set of nodes -> D of class k against class j."""
    difference, total = np.asarray(mu_k) - np.asarray(mu_j), np.asarray(cov_k) + np.asarray(cov_j)
    log_det = np.linalg.slogdet(total / 2)[1] - np.linalg.slogdet(cov_k)[1]
    return difference @ np.linalg.solve(total, difference) + log_det - 2 * math.log(p_j / p_k)


def log_overlap(nodes, location, covariances, priors):
    """A set of nodes, (class, node) location, (class, node, node) covariances -> ln Q of the set, which never is 0."""
    terms = []
    for k in range(len(priors)):
        for j in range(len(priors)):
            if j != k:
                cov_k, cov_j = (covariances[i][np.ix_(nodes, nodes)] for i in (k, j))
                d = joint_divergence(location[k][nodes], location[j][nodes], cov_k, cov_j, priors[k], priors[j])
                terms.append(math.log(priors[k]) - d / 2)
    return max(terms) + math.log(math.fsum(math.exp(term - max(terms)) for term in terms))


def residual_share(nodes, candidate, correlation):
    """Share of the candidate's variance that the chosen nodes leave unexplained."""
    if not nodes:
        return 1.0
    inner, to_candidate = correlation[np.ix_(nodes, nodes)], correlation[nodes, candidate]
    return 1.0 - to_candidate @ np.linalg.solve(inner, to_candidate)


def joint_selection(location, spreads, correlations, counts, priors, n_nodes, order=None):
    """(class, node) location and spread, (class, node, node) correlations -> nodes as chosen, Q after each of them.

    With ``order``, the first allowed node of it is taken each time instead of the one with the smallest Q.
    """
    covariances = [np.outer(s, s) * r for s, r in zip(spreads, correlations, strict=True)]
    chosen, overlaps = [], []
    while len(chosen) < n_nodes:
        allowed = [
            c
            for c in range(len(location[0]))
            if c not in chosen
            and all(
                count < 10 or residual_share(chosen, c, r) >= 0.05
                for count, r in zip(counts, correlations, strict=True)
            )
        ]
        if not allowed:
            break
        found = [log_overlap([*chosen, c], location, covariances, priors) for c in allowed]
        best = min(range(len(allowed)), key=lambda i: (found[i], allowed[i]))
        if order is not None:
            best = min(range(len(allowed)), key=lambda i: order.index(allowed[i]))
        chosen.append(allowed[best])
        overlaps.append(math.exp(found[best]))
    return chosen, overlaps


def mixed_log_density(point, values, bandwidth, location, spread):
    """Log density of the values and of one more sample, drawn from a normal distribution of three times the spread."""
    v, width = len(values), max(3 * spread, bandwidth)
    kernel = math.log(v / (v + 1)) + log_density(point, values, bandwidth)
    wide = -(((float(point) - location) / width) ** 2) / 2 - math.log(math.sqrt(2 * math.pi) * width * (v + 1))
    top = max(kernel, wide)
    return top + math.log(math.exp(kernel - top) + math.exp(wide - top))


def mixed_normal_score(point, values, bandwidth, location, spread):
    """Normal score of the distribution function of the same density, clipped to [1 / (2 v), 1 - 1 / (2 v)]."""
    v, width = len(values), max(3 * spread, bandwidth)
    centres = [(float(value), bandwidth) for value in values] + [(location, width)]
    below = math.fsum(math.erfc((c - float(point)) / (w * math.sqrt(2))) / 2 for c, w in centres) / (v + 1)
    above = math.fsum(math.erfc((float(point) - c) / (w * math.sqrt(2))) / 2 for c, w in centres) / (v + 1)
    smaller = max(min(below, above), 1 / (2 * v))
    score = normal_quantile(smaller) if smaller < 0.5 else 0.0
    return score if below <= above else -score


def joint_log_scores(points, values, codes, correlations, bandwidth, location, spreads, priors):
    """(node, point) and (node, sample) values, (class, node, node) correlations, widths -> (point, class) ln y."""
    result = np.empty((points.shape[1], len(priors)))
    for k, correlation in enumerate(correlations):
        own = values[:, codes == k]
        inner = np.linalg.inv(correlation) - np.eye(len(own))
        for t in range(points.shape[1]):
            parts = [(points[u, t], own[u], bandwidth[k][u], location[k][u], spreads[k][u]) for u in range(len(own))]
            score = np.array([mixed_normal_score(*part) for part in parts])
            logs = math.fsum(mixed_log_density(*part) for part in parts)
            result[t, k] = math.log(priors[k]) + logs - score @ inner @ score / 2
        result[:, k] -= np.linalg.slogdet(correlation)[1] / 2
    return result


def feature_correlations(weights, divergences):
    """(node, feature) weights, (class, node) divergences -> (class, feature) Pearson correlations of w^2 and D.

    Nodes whose divergence is not finite are left out for that class; without variation, or with fewer than 3 nodes,
    the correlation is 0.
    """
    return [
        [
            pearson([(float(w) ** 2, float(d)) for w, d in zip(column, row, strict=True) if math.isfinite(d)])
            for column in np.transpose(weights)
        ]
        for row in divergences
    ]


def pearson(pairs):
    """Pairs of numbers -> their correlation, in two passes."""
    if len(pairs) < 3:
        return 0.0
    columns = []
    for values in zip(*pairs, strict=True):
        centre = mean(values)
        columns.append([value - centre for value in values])
    deviations = [math.sqrt(math.fsum(value**2 for value in column)) for column in columns]
    if 0 in deviations:
        return 0.0
    return math.fsum(a * b for a, b in zip(*columns, strict=True)) / deviations[0] / deviations[1]


def feature_importances(correlations):
    """(class, feature) correlations -> (feature,) shares of their squares, of the positive ones alone."""
    squares = [math.fsum(r**2 for r in column if r > 0) for column in np.transpose(correlations)]
    total = math.fsum(squares)
    return [value / total if total else 1 / len(squares) for value in squares]


def pairwise_scores(location, spread, priors, tolerance, criterion):
    """(class, node) location and spread -> (class, node) scores, one ordered pair of classes after another.

    The same operations on float64 as the formulas, so that every bit of a result can be compared.
    """
    scores = np.full(location.shape, np.inf)
    for k in range(len(location)):
        for j in range(len(location)):
            if j == k:
                continue
            difference, variance = location[k] - location[j], spread[k] ** 2 + spread[j] ** 2
            constant = np.where(np.abs(difference) > np.maximum(tolerance[k], tolerance[j]), np.inf, -np.inf)
            score = np.divide(difference**2, variance, out=constant, where=variance > 0)
            if criterion == "extended_fisher":
                share = np.divide(2 * spread[k] ** 2, variance, out=np.zeros_like(variance), where=variance > 0)
                log_share = np.log(share, out=np.full_like(share, -np.inf), where=share > 0)
                threshold = log_share + 2 * np.log(priors[j] / priors[k])
                score = np.subtract(score, threshold, out=np.full_like(score, -np.inf), where=score > -np.inf)
            scores[k] = np.minimum(scores[k], score)
    return scores


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


def pair_correct_beyond(train, test, weights, draws, n_selected, pool_size):
    """Like ``pair_correct``, for all rules, with the best nodes and with a joint selection.

    A network is named by its criterion, its rule and its selection.
    """
    trained, tested = (
        [weights.astype(float) @ normalize(images, "sample").T for images in pair] for pair in (train, test)
    )
    if draws is not None:
        location = [np.array([interquartile_mean(row) for row in values]) for values in trained]
        shift = (draws - (location[1] - location[0]))[:, None]
        trained[1], tested[1] = trained[1] + shift, tested[1] + shift
    location = np.array([[interquartile_mean(row) for row in values] for values in trained])
    spreads = np.array([[_mad64(row) for row in values] for values in trained])
    chosen = {}
    for criterion in ("extended_fisher", "fisher"):
        scores = divergences(location, spreads, [0.5, 0.5], np.zeros_like(spreads), criterion)
        chosen[criterion, "top"] = [top_nodes(row, n_selected) for row in scores]
        if criterion == "extended_fisher":
            pool = sorted({node for row in scores for node in top_nodes(row, pool_size)})
    correlations = [shrunk_correlations(values[pool])[0] for values in trained]
    counts = [values.shape[1] for values in trained]
    found, _ = joint_selection(
        location[:, pool], spreads[:, pool], correlations, counts, [0.5, 0.5], len(counts) * n_selected
    )
    chosen["extended_fisher", "joint"] = [[pool[c] for c in found]] * 2
    return {
        (criterion, rule, selection): _pair_labelled(trained, tested, nodes, location, spreads, rule)
        for (criterion, selection), nodes in chosen.items()
        for rule in ("sum", "scaled", "log", "joint")
    }


def _pair_labelled(trained, tested, chosen, location, spreads, rule):
    """Values of two classes, the nodes of each -> number of correct labels by one rule, with equal priors."""
    used = sorted({node for row in chosen for node in row})
    own = [[used.index(node) for node in row] for row in chosen]
    values = np.concatenate([part[used] for part in trained], axis=1)
    codes = np.repeat([0, 1], [part.shape[1] for part in trained])
    widths = np.array([[silverman(part[node], spreads[k][node]) for node in used] for k, part in enumerate(trained)])
    correct = 0
    for k in (0, 1):
        points = tested[k][used]
        if rule == "joint":
            correlations = [shrunk_correlations(part[used])[0] for part in trained]
            y = joint_log_scores(
                points, values, codes, correlations, widths, location[:, used], spreads[:, used], [0.5, 0.5]
            )
        else:
            y = log_scores(points, values, codes, own, widths, spreads[:, used], [0.5, 0.5], rule)
        correct += int((y[:, k] > y[:, 1 - k]).sum())
    return correct


def held_out_log_density(values, sample, bandwidth):
    """(sample,) values, one of them -> log density there of the other ones, at least of a millionth of its kernel."""
    others = np.delete(values, sample)
    least = math.log(1e-6 / (math.sqrt(2 * math.pi) * bandwidth * len(others)))
    return max(least, log_density(values[sample], others, bandwidth))


def held_out_score(values, sample, bandwidth, spreads, combine):
    """(node, sample) values of one class at its nodes, one sample -> its log score there, without prior."""
    logs = [held_out_log_density(row, sample, width) for row, width in zip(values, bandwidth, strict=True)]
    if combine == "log":
        return math.fsum(logs)
    if combine == "scaled":
        logs = [value + math.log(spread) for value, spread in zip(logs, spreads, strict=True)]
    return max(logs) + math.log(math.fsum(math.exp(value - max(logs)) for value in logs))


def held_out_joint_score(values, sample, correlation, shrinkage, bandwidth, location, spreads):
    """(node, sample) values of one class, one sample -> its joint log score there, without prior, from the others.

    The densities have no kernel of the sample. Its normal scores' products are taken from the correlations, but for
    the last hundredth of the determinant.
    """
    point, others = values[:, sample], np.delete(values, sample, axis=1)
    parts = [(point[u], others[u], bandwidth[u], location[u], spreads[u]) for u in range(len(values))]
    score = np.array([mixed_normal_score(*part) for part in parts])
    form = score @ np.linalg.inv(correlation) @ score
    removed = (1 - shrinkage) / others.shape[1]
    if removed * form > 0.99:
        removed = 0.99 / form
    rest = correlation - removed * np.outer(score, score)
    quadratic = score @ np.linalg.inv(rest) @ score - score @ score
    return math.fsum(mixed_log_density(*part) for part in parts) - (quadratic + np.linalg.slogdet(rest)[1]) / 2


def temperature_loss(scores, codes, temperature):
    """(sample, class) scores, (sample,) classes -> log loss of the softmax of scores / T, as the temperature wants it.

    The true class has the probability 1 - d, the others share d = 1 / (n + 2). Differences to the true class's score
    are limited to three times the median distance from the true class to the best other one.
    """
    n, n_classes = len(scores), len(scores[0])
    differences = [[value - row[k] for value in row] for row, k in zip(scores, codes, strict=True)]
    margins = [abs(max(d for j, d in enumerate(row) if j != k)) for row, k in zip(differences, codes, strict=True)]
    limit = 3 * median([m for m in margins if m > 0]) if any(margins) else 0.0
    total, doubt = 0.0, 1 / (n + 2)
    for row, k in zip(differences, codes, strict=True):
        scaled = [max(-limit, min(limit, d)) / temperature for d in row]
        top = max(scaled)
        log_total = top + math.log(math.fsum(math.exp(s - top) for s in scaled))
        for j, s in enumerate(scaled):
            total += (1 - doubt if j == k else doubt / (n_classes - 1)) * (log_total - s)
    return total


def scale_without_outliers(values):
    """(sample,) values of a feature -> standard deviation; that of the quartiles if it is smaller and one value rules.

    One value rules if it makes up more than a quarter of the squares. Equal quartiles tell nothing.
    """
    centre, deviation = mean(values), std(values)
    of_quartiles = iqr(values)
    farthest = max(abs(float(v) - centre) for v in values)
    if farthest**2 > len(values) * deviation**2 / 4 and of_quartiles > 0:
        return min(deviation, of_quartiles)
    return deviation


def automatic_normalization(X):
    """(sample, feature) -> "feature" if one feature's scale is more than ten times the median of those above 0."""
    scales = [scale for scale in map(scale_without_outliers, np.transpose(X)) if scale > 0]
    return "feature" if scales and max(scales) > 10 * median(scales) else None


def correlation_ratio(values, codes):
    """(sample,) values and classes -> sqrt(SSB / SST) and the F of an analysis of variance.

    Without variation, or with one class alone, they are 0 and NaN.
    """
    values = [float(v) for v in values]
    centre = mean(values)
    classes = [[v for v, code in zip(values, codes, strict=True) if code == k] for k in sorted(set(codes))]
    total = math.fsum((v - centre) ** 2 for v in values)
    between = math.fsum(len(own) * (mean(own) - centre) ** 2 for own in classes)
    within = math.fsum((v - mean(own)) ** 2 for own in classes for v in own)
    if total == 0 or len(classes) == 1:
        return 0.0, math.nan
    freedom = (len(values) - len(classes)) / (len(classes) - 1)
    return math.sqrt(between / total), math.inf if within == 0 else between / within * freedom


def distribution_distance(first, second):
    """Values of two samples -> largest distance of their distribution functions."""

    def below(values, point):
        return sum(v <= point for v in values) / len(values)

    return max(abs(below(first, point) - below(second, point)) for point in [*first, *second])


def nearest_neighbour_information(values, codes, n_neighbours=3):
    """(sample,) distinct values and classes -> Ross's estimate of the mutual information, by all pairs.

    It is at least 0 and at most the entropy of the classes; samples that are alone in their class are left out.
    """
    sizes = {k: codes.count(k) for k in codes}
    kept = [(v, code) for v, code in zip(values, codes, strict=True) if sizes[code] > 1]
    n, total = len(kept), 0.0
    for i, (x, own) in enumerate(kept):
        k = min(n_neighbours, sizes[own] - 1)
        radius = sorted(abs(x - v) for j, (v, code) in enumerate(kept) if code == own and j != i)[k - 1]
        m = sum(abs(x - v) < radius for v, _ in kept)
        total += _digamma(k) - _digamma(sizes[own]) - _digamma(max(m, 1))
    entropy = -math.fsum(s / n * math.log(s / n) for s in sizes.values() if s > 1)
    return min(max(0.0, _digamma(n) + total / n), entropy)


def _digamma(m):
    """Of a whole number: harmonic numbers less Euler's constant."""
    return math.fsum(1 / i for i in range(1, m)) - 0.5772156649015329


def volume_of_overlap(first, second):
    """Values of two classes -> share of their range that they do not share."""
    both = min(max(first), max(second)) - max(min(first), min(second))
    either = max(*first, *second) - min(*first, *second)
    return 1 - max(0, both) / either if either else 0.0


def unshared_area(first, second, width_first, width_second, n_points=20_001):
    """Values of two classes, bandwidths -> 1 - integral of the smaller density, by a fine sum."""
    low = min(min(first) - 8 * width_first, min(second) - 8 * width_second)
    high = max(max(first) + 8 * width_first, max(second) + 8 * width_second)
    points = np.linspace(low, high, n_points)

    def density(values, width):
        kernels = [np.exp(-(((points - v) / width) ** 2) / 2) for v in values]
        return np.sum(kernels, axis=0) / (len(values) * width * math.sqrt(2 * math.pi))

    smaller = np.minimum(density(first, width_first), density(second, width_second))
    return 1 - float(smaller.sum() * (points[1] - points[0]))


def relief(values, codes, anchors, priors, n_neighbours=10):
    """(sample, column) values, (sample,) classes, rows of the anchors, (class,) priors -> (column,) ReliefF weights."""
    values = np.asarray(values, dtype=np.float64)
    low, width = values.min(axis=0), np.ptp(values, axis=0)
    scaled = (values - low) / np.where(width > 0, width, 1)
    weights = [0.0] * values.shape[1]
    for anchor in anchors:
        for k, prior in enumerate(priors):
            rows = [row for row in range(len(values)) if codes[row] == k and row != anchor]
            near = sorted(rows, key=lambda row: (_manhattan(scaled[anchor], scaled[row]), row))[:n_neighbours]
            factor = -1.0 if k == codes[anchor] else prior / (1 - priors[codes[anchor]])
            for column in range(len(weights)):
                for row in near:
                    difference = abs(scaled[anchor, column] - scaled[row, column])
                    weights[column] += factor * difference / len(near) / len(anchors)
    return weights


def _manhattan(a, b):
    """Sum of absolute differences, added in the order of the columns."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += abs(x - y)
    return total


def feature_scores(X, codes, criterion):
    """(sample, feature) values with NaN, (sample,) classes, a criterion without noise -> (class, feature) scores.

    The priors are the shares of the classes; missing values are left out, feature by feature.
    """
    counts = [list(codes).count(k) for k in sorted(set(codes))]
    scores = [feature_score(column, codes, counts, criterion) for column in np.transpose(X)]
    return np.array(scores, dtype=np.float64).T


def feature_score(column, codes, counts, criterion):
    """(sample,) values of one feature -> its score for every class."""
    present = [(float(v), code) for v, code in zip(column, codes, strict=True) if not math.isnan(v)]
    classes = [[v for v, code in present if code == k] for k in range(len(counts))]
    if criterion in ("fisher", "extended_fisher"):
        return _robust_score(classes, counts, criterion)
    if criterion == "pearson":
        pairs = [(v, k) for k, own in enumerate(classes) for v in own]
        ratio = correlation_ratio([v for v, _ in pairs], [k for _, k in pairs])[0] if pairs else 0.0
        return [ratio] * len(counts)
    scores = []
    for k, own in enumerate(classes):
        others = [other for j, other in enumerate(classes) if j != k]
        if criterion == "kolmogorov_smirnov":
            rest = [v for other in others for v in other]
            scores.append(distribution_distance(own, rest) if own and rest else 0.0)
        else:
            scores.append(min((volume_of_overlap(own, other) for other in others if own and other), default=0.0))
    return scores


def _robust_score(classes, counts, criterion):
    """Values of each class, samples of each class -> scores by interquartile means and MADs."""
    if min(map(len, classes)) < 2:
        return [-math.inf] * len(classes)
    location = np.array([[interquartile_mean(own)] for own in classes])
    spreads = shrunk_spreads([spread(own, "mad", 0.0)[0] for own in classes], counts)
    priors = [count / sum(counts) for count in counts]
    tolerance = np.zeros((len(classes), 1))
    return divergences(location, np.array(spreads)[:, None], priors, tolerance, criterion)[:, 0].tolist()


def mrmr(relevance, columns, n_features):
    """(feature,) relevance, list of the features' values -> features chosen by relevance less mean |correlation|."""

    def correlation(a, b):
        a, b = [v - mean(a) for v in a], [v - mean(b) for v in b]
        product = math.fsum(x * y for x, y in zip(a, b, strict=True))
        size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
        return product / size if size else 0.0

    chosen = []
    while len(chosen) < min(n_features, len(relevance)):
        left = [i for i in range(len(relevance)) if i not in chosen]
        value = {
            i: relevance[i] - (mean([abs(correlation(columns[i], columns[j])) for j in chosen]) if chosen else 0)
            for i in left
        }
        chosen.append(max(left, key=lambda i: (value[i], -i)))
    return chosen


def structured_weights(seed, block, n_features):
    """(p, feature) weights of one block of nodes: H D1 H D2 H D3 / p, as whole matrices."""
    p = 256
    while p < n_features:
        p *= 2
    product = np.eye(p)
    for i in (1, 2, 3):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(block, i))))
        bits = [byte >> shift & 1 for byte in generator.bytes(p // 8) for shift in range(7, -1, -1)]
        product = product @ hadamard(p).astype(float) @ np.diag([-1.0 if bit else 1.0 for bit in bits])
    return product[:, :n_features] / p
