/* A library that is there when a module is linked, and not where it is looked for afterwards. */
void lost_function(void);
void lost_function(void) {}
