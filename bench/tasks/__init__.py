"""How fast tasks with results are done: Penstock beside other task queues, each the way its documentation shows it."""
