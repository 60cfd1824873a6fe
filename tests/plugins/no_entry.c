/* A shared library that has nothing to do with DeepInfer. */
int answer(void);
int answer(void) { return 42; }
