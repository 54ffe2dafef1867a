"""The scikit-learn estimator, and the calls that load and apply fitted models."""
