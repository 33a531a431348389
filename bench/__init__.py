"""The benchmarks: `./dev bench` runs them, `./dev bench report` renders what the last run recorded."""
