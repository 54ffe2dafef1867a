"""The look of HTML pages and figures."""
