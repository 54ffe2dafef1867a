"""The paper's experiment, its results and its report."""
