"""Building blocks of HTML reports and figures."""
