"""The fork's wheel over a stock installation, served, and away again without a trace."""
