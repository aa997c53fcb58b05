"""`python -m app.cli` is `tenfold`."""

from app.cli import main

if __name__ == "__main__":
    main()
