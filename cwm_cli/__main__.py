"""Run the command line with `python -m cwm_cli`."""

from cwm_cli.cli import main

if __name__ == "__main__":
    main()
