drop table gradient.deployed_object;
drop table gradient.deployment;
drop schema scheduler;
drop schema graph;
drop schema gradient;
