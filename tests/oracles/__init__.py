"""Second oracle of the tests: byte positions stated format by format, independent of the specs and of the compiler."""
