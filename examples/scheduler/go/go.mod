module scheduler

go 1.27
