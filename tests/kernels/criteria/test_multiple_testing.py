import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from fxdask.kernels.criteria.multiple_testing import (
    FALSE_DISCOVERY_RULES,
    adjusted_p_values,
    false_discovery_threshold,
)

# Subnormal numbers have too few digits to be compared relatively.
probabilities = st.one_of(st.floats(0, 1, allow_subnormal=False), st.sampled_from([0.0, 1e-300, 0.01, 1.0]))
METHODS = {"benjamini_hochberg": "bh", "benjamini_yekutieli": "by"}


@given(p=st.lists(probabilities, min_size=1, max_size=30), rule=st.sampled_from(FALSE_DISCOVERY_RULES))
def test_adjusted_p_values_equal_those_of_scipy(p, rule):
    np.testing.assert_allclose(
        adjusted_p_values(np.array(p), rule), false_discovery_control(p, method=METHODS[rule]), rtol=1e-12
    )


@given(
    p=st.lists(probabilities, min_size=1, max_size=30),
    rule=st.sampled_from(FALSE_DISCOVERY_RULES),
    rate=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_the_threshold_accepts_the_columns_whose_adjusted_p_value_is_low_enough(p, rule, rate):
    p = np.array(p)
    accepted = p <= false_discovery_threshold(p, rate, rule)
    assert np.array_equal(accepted, adjusted_p_values(p, rule) <= rate)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="rule='holm' is not known; choose one of 'benjamini_hochberg', 'benjamini_y"):
        adjusted_p_values(np.ones(3), "holm")
