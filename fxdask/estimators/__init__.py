"""scikit-learn's face of fxdask."""
