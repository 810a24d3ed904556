/** Commands with which a first experiment begins on a machine with Airflow. */
export const CREATE_FIRST = "airflow dtrain init && airflow dtrain experiments create experiment.yaml";
